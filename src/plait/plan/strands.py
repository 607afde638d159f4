"""A model's branches as strands to be cut: what each layer and each cut costs on the slots of a shape."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from plait.cluster.spec import Cluster, Device
from plait.cost.costs import Costs, LayerCost
from plait.cost.memory import fixed_bytes
from plait.model.graph import BranchGraph, Layer, Scope
from plait.plan.orders import Shape
from plait.plan.pricing import Size, size_of
from plait.plan.stages import Floats, Strand
from plait.plan.ties import tied

LIGHT = 0.05
"""A branch with less than this share of the work is held whole by one slot."""


@dataclass(frozen=True)
class Work:
    """What is to be planned: model, devices, what layers cost, and the optimizer's bytes per parameter byte."""

    graph: BranchGraph
    cluster: Cluster
    costs: Costs
    optimizer_bytes: float
    _known: dict[tuple[str, str, int], LayerCost] = field(default_factory=dict)
    _cuts: dict[str, "Cuttable"] = field(default_factory=dict)
    _rows: dict[tuple[str, str, "Share"], Floats] = field(default_factory=dict)

    @cached_property
    def forced(self) -> frozenset[str]:
        """Layers that must begin a stage."""
        return forced_cuts(self.graph)

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """Each trained parameter that several layers share → these layers."""
        return tied(self.graph)

    def branch(self, name: str) -> "Cuttable":
        """What its layers and cuts weigh."""
        if name not in self._cuts:
            self._cuts[name] = _cuttable(self, self.graph.branches[name])
        return self._cuts[name]

    def cost(self, layer: str, device: Device, samples: int) -> LayerCost:
        """The cost of a layer; raises CostError."""
        key = layer, device.type, samples
        if key not in self._known:
            self._known[key] = self.costs.layer(layer, device, samples)
        return self._known[key]

    def seconds(self, branch: str, device: Device, share: "Share") -> Floats:
        """Per layer of a branch, the seconds of one step's ``share`` on a device; raises CostError."""
        key = branch, device.type, share
        if key not in self._rows:
            layers = self.graph.branches[branch]
            self._rows[key] = np.array([_layer_seconds(self, x, device, share) for x in layers])
        return self._rows[key]


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica does in a step: how many micro-batches of each size, and layers of batch scope at ``batch``."""

    counts: tuple[tuple[int, int], ...]
    batch: int
    recompute: bool


def _layer_seconds(work: Work, layer: Layer, device: Device, share: Share) -> float:
    if layer.scope is Scope.BATCH:
        cost = work.cost(layer.name, device, share.batch) if share.batch else None
        return cost.forward + cost.backward if cost else 0.0
    total = 0.0
    for samples, count in share.counts:
        cost = work.cost(layer.name, device, samples)
        total += count * (cost.forward * (1 + share.recompute) + cost.backward)
    return total


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A branch's layers: bytes that each keeps from step to step, and what crosses a cut right before it."""

    fixed: Floats
    values: tuple[Size, ...]
    gradients: tuple[Size, ...]
    """Of these values, those that return."""

    def both(self, layer: int) -> Size:
        """Values and gradients together."""
        there, back = self.values[layer], self.gradients[layer]
        return Size(there.per_sample + back.per_sample, there.fixed + back.fixed)


def _cuttable(work: Work, layers: Sequence[Layer]) -> Cuttable:
    graph = work.graph
    written: set[str] = set()
    values, gradients = [], []
    for index, layer in enumerate(layers):
        read = {v for later in layers[index:] for v in later.reads} & written
        specs = [graph.values[v] for v in sorted(read)]
        values.append(size_of(specs))
        gradients.append(size_of(s for s in specs if s.gradient))
        written.update(layer.writes)
    fixed = np.array([fixed_bytes(x.parameters, work.optimizer_bytes).total for x in layers])
    return Cuttable(fixed, tuple(values), tuple(gradients))


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to lay the model out, cuts left open."""

    shape: Shape
    shares: tuple[tuple[int, ...], ...]
    """Per replica, the global numbers of its micro-batches."""
    sizes: tuple[int, ...]
    """Samples of each micro-batch."""
    up: frozenset[str] = frozenset()
    """Branches that run from the last slot to the first."""
    recompute: bool = False
    overlap: float = 0.0
    """Share of the messages' time that is taken to hide behind compute."""

    def share(self, replica: int) -> Share:
        """What a replica does in a step; the first one runs the layers of batch scope."""
        given = [self.sizes[m] for m in self.shares[replica]]
        counts = tuple((samples, given.count(samples)) for samples in sorted(set(given)))
        return Share(counts, sum(self.sizes) if replica == 0 else 0, self.recompute)


def heavy_branches(work: Work, device: Device, samples: int) -> tuple[str, ...]:
    """Branches that are cut over the slots, by their share of the work; all where none is heavy."""
    weight = {b: sum(_weight(work, x, device, samples) for x in layers) for b, layers in work.graph.branches.items()}
    total = sum(weight.values())
    heavy = tuple(b for b, w in weight.items() if len(work.graph.branches[b]) > 1 and w >= LIGHT * total)
    return heavy or tuple(weight)


def _weight(work: Work, layer: Layer, device: Device, samples: int) -> float:
    cost = work.cost(layer.name, device, samples)
    return cost.forward + cost.backward


def strand(work: Work, branch: str, setting: Setting) -> Strand:
    """The branch as a strand over the setting's slots."""
    layers, slots, cuts = work.graph.branches[branch], setting.shape.slots, work.branch(branch)
    shares = [setting.share(g) for g in range(setting.shape.replicas)]
    seconds = [
        np.max([work.seconds(branch, d, share) for d, share in zip(slot, shares, strict=True)], axis=0)
        for slot in slots
    ]
    flight = _in_flight(work.graph, setting, branch in setting.up)
    largest = max(setting.sizes)
    held = np.array([work.cost(x.name, slots[0][0], largest).held_bytes for x in layers])
    kept = np.array([size.bytes(largest) for size in cuts.values])
    alive = np.ones_like(flight) if setting.recompute else flight
    return Strand(
        name=branch,
        seconds=np.array(seconds),
        memory=cuts.fixed[None, :] + alive[:, None] * held[None, :],
        entry_seconds=_entry_seconds(work, setting, cuts),
        entry_memory=flight[:, None] * kept[None, :] * setting.recompute,
        up=branch in setting.up,
    )


def _in_flight(graph: BranchGraph, setting: Setting, up: bool) -> Floats:
    """Per slot, how many micro-batches are held at once: all before a barrier, else as 1F1B holds them."""
    slots, count = len(setting.shape.slots), max(len(s) for s in setting.shares)
    if any(layer.scope is Scope.BATCH for layer in graph.layers):
        return np.full(slots, float(count))
    depth = np.arange(1, slots + 1, dtype=np.float64)
    return np.minimum(depth if up else depth[::-1], count)


def _entry_seconds(work: Work, setting: Setting, cuts: Cuttable) -> Floats:
    """[a, b, layer]: the step's messages between slots a and b, of the replica that takes longest."""
    slots = setting.shape.slots
    found = np.zeros((len(slots), len(slots), len(cuts.fixed)))
    sizes = [cuts.both(layer) for layer in range(len(cuts.fixed))]
    for replica, numbers in enumerate(setting.shares):
        samples, count = sum(setting.sizes[m] for m in numbers), len(numbers)
        nbytes = np.array([s.per_sample * samples + s.fixed * count for s in sizes])
        for a, b in np.ndindex(len(slots), len(slots)):
            one, two = slots[a][replica], slots[b][replica]
            if one.name != two.name:
                link = work.cluster.link(one, two)
                spent = nbytes / link.bandwidth * (1 - setting.overlap) + 2 * link.latency
                found[a, b] = np.maximum(found[a, b], spent)
    return found


def forced_cuts(graph: BranchGraph) -> frozenset[str]:
    """Layers that must begin a stage: where the scope changes, and where branches that feed each other meet.

    If two branches depend on each other (co-attention), a stage across such a meeting point would need the
    other branch's stage and be needed by it.
    """
    needs = _needs(graph)
    crossing = [(maker, reader) for _, maker, reader in graph.interactions if _mutual(graph, needs, maker, reader)]
    makers, readers = {maker for maker, _ in crossing}, {reader for _, reader in crossing}
    return frozenset(
        layer.name
        for layers in graph.branches.values()
        for before, layer in pairwise(layers)
        if layer.scope is not before.scope or before.name in makers or layer.name in readers
    )


def _needs(graph: BranchGraph) -> dict[str, set[str]]:
    """Branch → the branches that it depends on, over any number of others."""
    needs: dict[str, set[str]] = {b: set() for b in graph.branches}
    for _, maker, reader in graph.interactions:
        needs[graph.by_name[reader].branch].add(graph.by_name[maker].branch)
    for over, beyond in needs.items():
        for found in needs.values():
            if over in found:
                found.update(beyond)
    return needs


def _mutual(graph: BranchGraph, needs: dict[str, set[str]], maker: str, reader: str) -> bool:
    one, two = graph.by_name[maker].branch, graph.by_name[reader].branch
    return one != two and one in needs[two] and two in needs[one]

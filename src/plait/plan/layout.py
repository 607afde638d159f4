"""Lays a model out in a setting: cuts, then the light branches where they cost least, then stages with their ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plait.cluster.spec import Device
from plait.cost.links import all_reduce_seconds, message_seconds, slowest_link
from plait.cost.memory import fixed_bytes
from plait.model.graph import BranchGraph, Layer, Scope
from plait.plan.choices import MicroBatches, StageChoice
from plait.plan.pricing import size_of, values_read
from plait.plan.stages import Cuts, Floats, balance
from plait.plan.strands import Setting, Work, strand
from plait.plan.ties import sum_seconds


@dataclass(frozen=True, slots=True)
class Layout:
    """Stages on ranks: what ``assemble`` needs, with a guess of the step's seconds to choose what to simulate."""

    setting: Setting
    devices: tuple[str, ...]
    stages: tuple[StageChoice, ...]
    guess: float


@dataclass(frozen=True, slots=True)
class _Held:
    """Layers of one branch on one slot; ``replica`` alone where their scope is batch, else all."""

    branch: str
    layers: tuple[Layer, ...]
    slot: int
    replica: int | None = None


def lay_out(work: Work, heavy: Sequence[str], setting: Setting, *, room: float = 1.0) -> Layout | None:
    """The layout of a setting, or None where it doesn't fit. ``room`` times the devices' memory is reckoned with."""
    strands = [strand(work, branch, setting) for branch in heavy]
    given = room * _room(setting)
    cuts = balance(strands, given)
    if cuts is None:
        return None
    held = _pieces(work, heavy, cuts)
    load, memory = cuts.load.copy(), given - cuts.memory
    for branch in work.graph.branches:
        if branch not in heavy:
            _place_light(work, setting, branch, held, load, memory)
    return _layout(work, setting, held, load)


def stage_name(graph: BranchGraph, layers: Sequence[str]) -> str:
    """The branch, with the layers' numbers inside it where they are not all: ``text.7-11``."""
    branch = graph.by_name[layers[0]].branch
    place = [x.name for x in graph.branches[branch]]
    first, last = place.index(layers[0]), place.index(layers[-1])
    if len(place) == len(layers):
        return branch
    return f"{branch}.{first}" if first == last else f"{branch}.{first}-{last}"


def _room(setting: Setting) -> Floats:
    """Bytes per slot; Chimera's devices stand in two slots."""
    share = 2 if setting.shape.chimera else 1
    return np.array([min(d.memory for d in slot) / share for slot in setting.shape.slots])


def _pieces(work: Work, heavy: Sequence[str], cuts: Cuts) -> list[_Held]:
    found = []
    for branch, pieces in zip(heavy, cuts.pieces, strict=True):
        for piece in pieces:
            layers = work.graph.branches[branch][piece.first : piece.end]
            found += [_held(branch, run, piece.slot) for run in _runs(layers, work.forced)]
    return found


def _runs(layers: Sequence[Layer], cuts: frozenset[str]) -> list[tuple[Layer, ...]]:
    runs: list[list[Layer]] = []
    for layer in layers:
        if not runs or layer.name in cuts:
            runs.append([])
        runs[-1].append(layer)
    return [tuple(run) for run in runs]


def _held(branch: str, layers: tuple[Layer, ...], slot: int, replica: int = 0) -> _Held:
    return _Held(branch, layers, slot, replica if layers[0].scope is Scope.BATCH else None)


def _place_light(work: Work, setting: Setting, branch: str, held: list[_Held], load: Floats, memory: Floats) -> None:
    """Put a light branch whole on the slot (of batch scope: on the device) of least transfer, load and sums.

    Slots without the memory for it are left out where others have it.
    """
    layers = work.graph.branches[branch]
    batch = any(x.scope is Scope.BATCH for x in layers)
    need = _need(work, setting, layers)
    best, share = (True, np.inf, 0, 0), setting.share(0)
    first = _last_read(layers, held) if setting.shape.chimera and not batch else 0
    for slot, devices in list(enumerate(setting.shape.slots))[first:]:
        for replica, device in enumerate(devices if batch else devices[:1]):
            own = work.seconds(branch, device, share).sum()
            moved = _moved_seconds(work, setting, layers, held, slot, replica)
            summed = _tied_seconds(work, setting, [*held, _held(branch, tuple(layers), slot, replica)])
            best = min(best, (bool(need > memory[slot]), float(load[slot] + own + moved + summed), slot, replica))
    _, _, slot, replica = best
    held.extend(_held(branch, run, slot, replica) for run in _runs(layers, work.forced))
    load[slot] += work.seconds(branch, setting.shape.slots[slot][replica], share).sum()
    memory[slot] -= need


def _need(work: Work, setting: Setting, layers: Sequence[Layer]) -> float:
    """Bytes of a light branch: what it keeps from step to step, and activations over the whole batch."""
    fixed = fixed_bytes((p for x in layers for p in x.parameters), work.optimizer_bytes).total
    device, samples = setting.shape.slots[0][0], sum(setting.sizes)
    return fixed + sum(work.cost(x.name, device, samples).held_bytes for x in layers if x.scope is Scope.BATCH)


def _last_read(layers: Sequence[Layer], held: Sequence[_Held]) -> int:
    """The last slot that ``layers`` read from: in Chimera nothing runs against the pipeline."""
    reads = {v for x in layers for v in x.reads}
    return max((p.slot for p in held if any(v in reads for x in p.layers for v in x.writes)), default=0)


def _moved_seconds(
    work: Work, setting: Setting, layers: Sequence[Layer], held: Sequence[_Held], slot: int, replica: int
) -> float:
    """Seconds of a step's messages between ``layers``, were they on a slot, and what they read, there and back."""
    graph = work.graph
    reads = values_read(graph, [x.name for x in layers])
    total = 0.0
    for source in held:
        made = {v for x in source.layers for v in x.writes}
        size = size_of(graph.values[v] for v in reads if v in made)
        if not (size.per_sample or size.fixed):
            continue
        for group, numbers in enumerate(setting.shares):
            one = setting.shape.slots[source.slot][group]
            two = setting.shape.slots[slot][replica if layers[0].scope is Scope.BATCH else group]
            if one.name != two.name:
                link = work.cluster.link(one, two)
                total += 2 * sum(message_seconds(link, size.bytes(setting.sizes[m])) for m in numbers)
    return total


def _layout(work: Work, setting: Setting, held: Sequence[_Held], load: Floats) -> Layout:
    used = {d.name for piece in held for d in _devices(setting, piece)}
    devices = tuple(d.name for d in setting.shape.devices if d.name in used)
    rank = {name: index for index, name in enumerate(devices)}
    stages = []
    for piece in held:
        names = tuple(x.name for x in piece.layers)
        replicas = tuple(
            (rank[d.name], _numbers(setting, piece, group)) for group, d in enumerate(_devices(setting, piece))
        )
        batch = piece.replica is not None
        stages.append(StageChoice(stage_name(work.graph, names), names, replicas, setting.recompute and not batch))
    return Layout(setting, devices, tuple(stages), _guess(work, setting, held, load))


def _devices(setting: Setting, piece: _Held) -> tuple[Device, ...]:
    slot = setting.shape.slots[piece.slot]
    return slot if piece.replica is None else (slot[piece.replica],)


def _numbers(setting: Setting, piece: _Held, group: int) -> MicroBatches:
    return "all" if piece.replica is not None or len(setting.shares) == 1 else setting.shares[group]


def _guess(work: Work, setting: Setting, held: Sequence[_Held], load: Floats) -> float:
    """The busiest slot, the longest way of one micro-batch through the others, and the reductions."""
    mine = {b: [p for p in held if p.branch == b] for b in work.graph.branches}
    fill = max(_way(work, setting, pieces, work.graph.branches[b]) for b, pieces in mine.items())
    busiest = load + load[::-1] if setting.shape.chimera else load  # its devices stand in two slots each
    return float(busiest.max()) + fill + _reduce_seconds(work, setting, held) + _tied_seconds(work, setting, held)


def _way(work: Work, setting: Setting, pieces: Sequence[_Held], layers: Sequence[Layer]) -> float:
    """Seconds of one micro-batch down a branch and back, but for its busiest stage."""
    branch, share = layers[0].branch, setting.share(0)
    place = {x.name: i for i, x in enumerate(layers)}
    spent = [
        work.seconds(branch, setting.shape.slots[p.slot][0], share)[[place[x.name] for x in p.layers]].sum()
        for p in pieces
    ]
    total = float(sum(spent) - max(spent)) / len(setting.shares[0])
    cuts = work.branch(branch)
    for before, piece in pairwise(pieces):
        one, two = setting.shape.slots[before.slot][0], setting.shape.slots[piece.slot][0]
        if one.name != two.name:
            at = place[piece.layers[0].name]
            link = work.cluster.link(one, two)
            total += sum(message_seconds(link, s[at].bytes(setting.sizes[0])) for s in (cuts.values, cuts.gradients))
    return total


def _tied_seconds(work: Work, setting: Setting, held: Sequence[_Held]) -> float:
    """Seconds of the sums of gradients of weights that layers on different devices share."""
    if not work.tied:
        return 0.0
    return sum_seconds(work.cluster, work.tied, [(p.layers, _devices(setting, p)) for p in held])


def _reduce_seconds(work: Work, setting: Setting, held: Sequence[_Held]) -> float:
    if setting.shape.replicas == 1:
        return 0.0
    slowest = 0.0
    for slot, devices in enumerate(setting.shape.slots):
        parameters = [p for piece in held if piece.slot == slot for x in piece.layers for p in x.parameters]
        nbytes = fixed_bytes(parameters, 0.0).gradients
        if nbytes:
            link = slowest_link(work.cluster, devices)
            slowest = max(slowest, all_reduce_seconds(link, len(devices), nbytes))
    return slowest

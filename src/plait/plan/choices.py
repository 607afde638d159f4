"""The choices that make a plan: stages with their layers and ranks, checked against the model and put in order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from plait.cluster.spec import Cluster, Device
from plait.errors import PlanError
from plait.model.graph import BranchGraph, Scope
from plait.plan.pricing import values_read

MicroBatches = tuple[int, ...] | Literal["all"]
"""Global numbers of micro-batches, or all of them."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A stage as it is chosen: its layers and, per replica, the rank and the micro-batches that it runs there."""

    name: str
    layers: tuple[str, ...]
    replicas: tuple[tuple[int, MicroBatches], ...]
    recompute: bool = False

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that hold it."""
        return tuple(rank for rank, _ in self.replicas)


@dataclass(frozen=True, slots=True)
class Choices:
    """All choices of a plan: stages in topological order, a device per rank, samples per micro-batch."""

    graph: BranchGraph
    cluster: Cluster
    devices: tuple[Device, ...]
    stages: tuple[StageChoice, ...]
    micro_batches: tuple[int, ...]

    def scope(self, stage: StageChoice) -> Literal[Scope.MICROBATCH, Scope.BATCH]:
        """The scope of a stage's layers, which is one."""
        return self.graph.by_name[stage.layers[0]].scope

    def samples(self, stage: StageChoice, given: MicroBatches) -> list[int]:
        """The distinct numbers of samples that a replica runs at once."""
        if self.scope(stage) is Scope.BATCH:
            return [sum(self.micro_batches)]
        numbers = range(len(self.micro_batches)) if given == "all" else given
        return sorted({self.micro_batches[m] for m in numbers})


def checked(
    graph: BranchGraph,
    cluster: Cluster,
    devices: Sequence[str],
    stages: Sequence[StageChoice],
    micro_batches: Sequence[int],
) -> Choices:
    """The choices, checked and ordered; raises PlanError with the names of what contradicts."""
    _check_devices(cluster, devices, stages)
    _check_micro_batches(micro_batches, stages)
    _check_layers(graph, stages)
    ordered = topological(graph, [_in_graph_order(graph, s) for s in stages])
    return Choices(graph, cluster, tuple(cluster.by_name[d] for d in devices), ordered, tuple(micro_batches))


def _check_devices(cluster: Cluster, devices: Sequence[str], stages: Sequence[StageChoice]) -> None:
    for rank, name in enumerate(devices):
        if name not in cluster.by_name:
            raise PlanError(f"devices.{rank}: no device {name!r} in the cluster; it has {', '.join(cluster.by_name)}")
    for stage in stages:
        if not stage.replicas:
            raise PlanError(f"stage {stage.name}: no rank holds it")
        twice = sorted({r for r in stage.ranks if stage.ranks.count(r) > 1})
        if twice:
            raise PlanError(
                f"stage {stage.name}: rank {twice[0]} holds it twice; give it all its micro-batches at once"
            )
        wrong = [r for r in stage.ranks if not 0 <= r < len(devices)]
        if wrong:
            raise PlanError(f"stage {stage.name}: rank {wrong[0]} has no device; there are {len(devices)}")


def _check_layers(graph: BranchGraph, stages: Sequence[StageChoice]) -> None:
    held: dict[str, str] = {}
    for stage in stages:
        if not stage.layers:
            raise PlanError(f"stage {stage.name}: it has no layers")
        for name in stage.layers:
            if name not in graph.by_name:
                raise PlanError(f"stage {stage.name}: the model {graph.model} has no layer {name!r}")
            if name in held:
                raise PlanError(f"layer {name} is given twice: to stage {held[name]} and to stage {stage.name}")
            held[name] = stage.name
        _check_uniform(graph, stage)
    missing = [layer.name for layer in graph.layers if layer.name not in held]
    if missing:
        raise PlanError(f"no stage holds {len(missing)} of {len(graph.layers)} layers: {_some(missing)}")


def _check_uniform(graph: BranchGraph, stage: StageChoice) -> None:
    layers = [graph.by_name[name] for name in stage.layers]
    for layer in layers:
        if layer.branch != layers[0].branch:
            raise PlanError(
                f"stage {stage.name} mixes branches: {layers[0].name} is of {layers[0].branch}, {layer.name} of "
                f"{layer.branch}; make them two stages (one rank can hold both)"
            )
        if layer.scope is not layers[0].scope:
            raise PlanError(
                f"stage {stage.name} mixes scopes: {layers[0].name} has scope {layers[0].scope}, {layer.name} "
                f"{layer.scope}; make them two stages (one rank can hold both)"
            )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _check_micro_batches(micro_batches: Sequence[int], stages: Sequence[StageChoice]) -> None:
    if not micro_batches or min(micro_batches) < 1:
        raise PlanError(f"micro_batches: {list(micro_batches)} must be numbers of samples, each at least 1")
    for stage in stages:
        for rank, given in stage.replicas:
            wrong = [m for m in given if given != "all" and not 0 <= int(m) < len(micro_batches)]
            if wrong:
                raise PlanError(
                    f"stage {stage.name}, rank {rank}: no micro-batch {wrong[0]}; there are {len(micro_batches)}"
                )
            if not given:
                raise PlanError(f"stage {stage.name}, rank {rank}: it runs no micro-batch; leave the replica out")


def _in_graph_order(graph: BranchGraph, stage: StageChoice) -> StageChoice:
    inside = set(stage.layers)
    return replace(stage, layers=tuple(layer.name for layer in graph.layers if layer.name in inside))


def topological(graph: BranchGraph, stages: Sequence[StageChoice]) -> tuple[StageChoice, ...]:
    """Stages such that each follows those it reads from, as near to the graph's order as that allows.

    Raises PlanError where stages depend on each other in a cycle.
    """
    home = {layer: s.name for s in stages for layer in s.layers}
    needs = {s.name: {home[graph.producers[v]] for v in values_read(graph, s.layers)} for s in stages}
    place = {layer.name: index for index, layer in enumerate(graph.layers)}
    waiting = sorted(stages, key=lambda s: place[s.layers[0]])
    ordered: list[StageChoice] = []
    while waiting:
        done = {s.name for s in ordered}
        ready = next((s for s in waiting if needs[s.name] <= done), None)
        if ready is None:
            raise PlanError(f"stages depend on each other in a cycle: {_cycle(needs, waiting[0].name, done)}")
        ordered.append(ready)
        waiting.remove(ready)
    return tuple(ordered)


def _cycle(needs: dict[str, set[str]], start: str, done: set[str]) -> str:
    """A cycle among the stages that can't be ordered, as text: each needs the one after the arrow."""
    path = [start]
    while path.count(path[-1]) < 2:
        path.append(min(needs[path[-1]] - done))
    return " → ".join(path[path.index(path[-1]) :]) + " (each reads from the next)"

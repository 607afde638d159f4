"""Ways to spread a model over ranks, for any graph: each says only where a layer lives; stages follow from that."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.cluster.spec import Cluster
from plait.model.graph import BranchGraph, Layer, Scope
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan, SchedulePlan
from support.plans import Replicas, UnitCosts, cluster_of

MICRO_BATCHES = (2, 2, 2, 2)
UNEVEN = (3, 1, 2, 2)


@dataclass
class _Open:
    """A stage in the making."""

    branch: str
    scope: Scope
    home: Replicas
    layers: list[str] = field(default_factory=list)


def stages_of(graph: BranchGraph, homes: Mapping[str, Replicas], recompute: Sequence[str] = ()) -> list[StageChoice]:
    """The fewest stages: consecutive layers of a branch at the same home, unless that would make a cycle."""
    stages: list[_Open] = []
    place: dict[str, int] = {}
    before: list[set[int]] = []
    for layer in graph.layers:
        made = {place[graph.producers[v]] for v in layer.reads}
        index = next(
            (i for i, s in enumerate(stages) if _fits(s, layer, homes[layer.name]) and not _later(i, made, before)),
            None,
        )
        if index is None:
            index = len(stages)
            stages.append(_Open(layer.branch, layer.scope, homes[layer.name]))
            before.append(set())
        stages[index].layers.append(layer.name)
        place[layer.name] = index
        before[index] |= made - {index}
    return [
        StageChoice(f"{s.branch}.{i}", tuple(s.layers), tuple(s.home), s.branch in recompute)  # type: ignore[arg-type]
        for i, s in enumerate(stages)
    ]


def _fits(stage: _Open, layer: Layer, home: Replicas) -> bool:
    return (stage.branch, stage.scope, stage.home) == (layer.branch, layer.scope, home)


def _later(index: int, made: set[int], before: Sequence[set[int]]) -> bool:
    """Whether one of the stages ``made`` depends on stage ``index``, which would then depend on itself."""
    waiting, seen = [m for m in made if m != index], set[int]()
    while waiting:
        stage = waiting.pop()
        if stage == index:
            return True
        if stage not in seen:
            seen.add(stage)
            waiting += before[stage]
    return False


def pipeline(graph: BranchGraph, ranks: int) -> dict[str, Replicas]:
    """The layers in their order, in ``ranks`` runs: as today's tools would have it."""
    count = len(graph.layers)
    return {layer.name: _at(i * ranks // count) for i, layer in enumerate(graph.layers)}


def opposed(graph: BranchGraph, ranks: int) -> dict[str, Replicas]:
    """Every branch over all ranks, every other one in the opposite direction."""
    found: dict[str, Replicas] = {}
    for number, layers in enumerate(graph.branches.values()):
        for i, layer in enumerate(layers):
            rank = i * ranks // len(layers)
            found[layer.name] = _at(rank if number % 2 == 0 else ranks - 1 - rank)
    return found


def apart(graph: BranchGraph, ranks: int) -> dict[str, Replicas]:
    """A branch per rank, round robin."""
    return {x.name: _at(n % ranks) for n, layers in enumerate(graph.branches.values()) for x in layers}


def scattered(graph: BranchGraph, ranks: int, seed: int = 0) -> dict[str, Replicas]:
    """Random cuts at random ranks, some with two replicas that share the micro-batches."""
    chance = random.Random(seed)  # noqa: S311
    found: dict[str, Replicas] = {}
    for layers in graph.branches.values():
        home: Replicas | None = None
        for layer in layers:
            if home is None or chance.random() < 0.5 or (layer.scope is Scope.BATCH and len(home) > 1):
                home = _random_home(chance, layer, ranks)
            found[layer.name] = home
    return found


def _random_home(chance: random.Random, layer: Layer, ranks: int) -> Replicas:
    first = chance.randrange(ranks)
    if layer.scope is Scope.BATCH or ranks == 1 or chance.random() < 0.6:
        return _at(first)
    second = chance.choice([r for r in range(ranks) if r != first])
    return ((first, (0, 3)), (second, (1, 2)))


def _at(rank: int) -> Replicas:
    return ((rank, "all"),)


WAYS = {"pipeline": pipeline, "opposed": opposed, "scattered": scattered}
"""The three ways that every model must go through."""


def plan_by(
    graph: BranchGraph,
    ranks: int,
    homes: Mapping[str, Replicas],
    micro_batches: Sequence[int] = MICRO_BATCHES,
    recompute: Sequence[str] = (),
) -> Plan:
    """The plan with each layer at its home, ordered by the branch-aware scheduler."""
    cluster: Cluster = cluster_of(ranks)
    return assemble(
        graph,
        cluster,
        [d.name for d in cluster.devices],
        stages_of(graph, homes, recompute),
        micro_batches,
        SchedulePlan(name="branch_aware"),
        costs=UnitCosts(),
    )

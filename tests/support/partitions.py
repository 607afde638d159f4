"""Ways to spread a model over ranks, for any graph: each says only where a layer lives; stages follow from that."""

import random
from collections.abc import Mapping, Sequence

from plait.cluster.spec import Cluster
from plait.model.graph import BranchGraph, Layer, Scope
from plait.plan.assemble import assemble
from plait.plan.homes import Home, stages_of
from plait.plan.plan import Plan, SchedulePlan
from support.plans import UnitCosts, cluster_of

MICRO_BATCHES = (2, 2, 2, 2)
UNEVEN = (3, 1, 2, 2)


def pipeline(graph: BranchGraph, ranks: int) -> dict[str, Home]:
    """The layers in their order, in ``ranks`` runs: as today's tools would have it."""
    count = len(graph.layers)
    return {layer.name: _at(i * ranks // count) for i, layer in enumerate(graph.layers)}


def opposed(graph: BranchGraph, ranks: int) -> dict[str, Home]:
    """Every branch over all ranks, every other one in the opposite direction."""
    found: dict[str, Home] = {}
    for number, layers in enumerate(graph.branches.values()):
        for i, layer in enumerate(layers):
            rank = i * ranks // len(layers)
            found[layer.name] = _at(rank if number % 2 == 0 else ranks - 1 - rank)
    return found


def apart(graph: BranchGraph, ranks: int) -> dict[str, Home]:
    """A branch per rank, round robin."""
    return {x.name: _at(n % ranks) for n, layers in enumerate(graph.branches.values()) for x in layers}


def scattered(graph: BranchGraph, ranks: int, seed: int = 0) -> dict[str, Home]:
    """Random cuts at random ranks, some with two replicas that share the micro-batches."""
    chance = random.Random(seed)  # noqa: S311
    found: dict[str, Home] = {}
    for layers in graph.branches.values():
        home: Home | None = None
        for layer in layers:
            if home is None or chance.random() < 0.5 or (layer.scope is Scope.BATCH and len(home) > 1):
                home = _random_home(chance, layer, ranks)
            found[layer.name] = home
    return found


def _random_home(chance: random.Random, layer: Layer, ranks: int) -> Home:
    first = chance.randrange(ranks)
    if layer.scope is Scope.BATCH or ranks == 1 or chance.random() < 0.6:
        return _at(first)
    second = chance.choice([r for r in range(ranks) if r != first])
    return ((first, (0, 3)), (second, (1, 2)))


def _at(rank: int) -> Home:
    return ((rank, "all"),)


WAYS = {"pipeline": pipeline, "opposed": opposed, "scattered": scattered}
"""The three ways that every model must go through."""


def plan_by(
    graph: BranchGraph,
    ranks: int,
    homes: Mapping[str, Home],
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

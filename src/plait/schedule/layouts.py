"""Placements of the shapes that papers describe, to try schedules on without a model or a plan."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from plait.schedule.action import ALL
from plait.schedule.placement import Edge, PlacedStage, Placement, Replica


def chain(ranks: int, micro_batches: int, *, replicas: int = 1) -> Placement:
    """One stage a position of a chain; with ``replicas`` each on its own rank, micro-batches dealt in turn.

    ``ranks`` counts all, so it is a multiple of ``replicas``; every micro-batch has one sample.
    """
    positions = ranks // replicas
    stages = tuple(
        PlacedStage(
            f"model.{s}",
            "model",
            tuple(Replica(s * replicas + r, tuple(range(r, micro_batches, replicas))) for r in range(replicas)),
        )
        for s in range(positions)
    )
    return Placement(ranks, stages, _line(range(positions)), (1,) * micro_batches)


def bidirectional(ranks: int, micro_batches: int) -> Placement:
    """Chimera's: stage s on rank s for the first half of the micro-batches, on rank D-1-s for the second."""
    half = micro_batches // 2
    first, second = tuple(range(half)), tuple(range(half, micro_batches))
    stages = tuple(
        PlacedStage(f"model.{s}", "model", (Replica(s, first), Replica(ranks - 1 - s, second))) for s in range(ranks)
    )
    return Placement(ranks, stages, _line(range(ranks)), (1,) * micro_batches)


def opposed(ranks: int, micro_batches: int, *, batch_scope: bool = False) -> Placement:
    """Two branches that run over the ranks in opposite directions, and a loss over both on the last rank."""
    everything = tuple(range(micro_batches))
    ways = {"image": range(ranks), "text": range(ranks - 1, -1, -1)}
    towers = [
        PlacedStage(f"{branch}.{position}", branch, (Replica(rank, everything),))
        for branch, way in ways.items()
        for position, rank in enumerate(way)
    ]
    loss = PlacedStage("loss", "loss", (Replica(ranks - 1, (ALL,) if batch_scope else everything),), batch_scope)
    ends = (ranks - 1, 2 * ranks - 1)
    edges = (
        *_line(range(ranks)),
        *_line(range(ranks, 2 * ranks)),
        *(_edge(end, 2 * ranks) for end in ends),
    )
    return Placement(ranks, (*towers, loss), edges, (1,) * micro_batches)


def linear(placement: Placement, ranks: int) -> Placement:
    """The same stages cut into ``ranks`` consecutive runs of nearly equal count, as for a model seen as one chain."""
    plain = [i for i, s in enumerate(placement.stages) if not s.batch_scope]
    rank_of = {s: position * ranks // len(plain) for position, s in enumerate(plain)}
    stages = tuple(
        replace(
            s,
            replicas=(
                Replica(rank_of.get(i, ranks - 1), s.replicas[0].micro_batches if s.batch_scope else _all(placement)),
            ),
        )
        for i, s in enumerate(placement.stages)
    )
    return replace(placement, ranks=ranks, stages=stages, reductions=())


def recomputing(placement: Placement, stages: Sequence[int]) -> Placement:
    """The placement with these stages set to recompute."""
    return replace(placement, stages=tuple(replace(s, recompute=i in stages) for i, s in enumerate(placement.stages)))


def _all(placement: Placement) -> tuple[int, ...]:
    return tuple(range(len(placement.micro_batches)))


def _line(stages: Sequence[int]) -> tuple[Edge, ...]:
    return tuple(_edge(a, b) for a, b in pairwise(stages))


def _edge(source: int, target: int) -> Edge:
    return Edge(source, target, ("hidden",), bytes_per_sample=1.0, gradient_bytes_per_sample=1.0)

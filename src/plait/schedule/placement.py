"""Placement: which rank holds which replica of which stage, and the edges between stages.

The integer skeleton of a plan: all that generators, lowering, verifier and simulator need to know.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from plait.errors import PlanError
from plait.schedule.action import ALL


@dataclass(frozen=True)
class Replica:
    """One copy of a stage: the rank that holds it and the micro-batches that it runs.

    For a stage of batch scope ``micro_batches`` is ``(ALL,)``.
    """

    rank: int
    micro_batches: tuple[int, ...]


@dataclass(frozen=True)
class PlacedStage:
    """A stage with its replicas. ``name`` is for messages and pictures."""

    name: str
    branch: str
    replicas: tuple[Replica, ...]
    batch_scope: bool = False
    backward: bool = True
    """Whether it has a backward at all (a frozen stage under frozen inputs has none)."""
    weight_gradient: bool = True
    """Whether its backward has a W: a frozen stage behind one that learns only passes the gradient on."""
    recompute: bool = False
    """Whether it keeps only its inputs and runs its forward again (R) before the backward."""

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Micro-batch → the rank that runs it."""
        return {m: r.rank for r in self.replicas for m in r.micro_batches}


@dataclass(frozen=True)
class Edge:
    """Values that go from one stage to another for every micro-batch; the gradient goes back if ``gradient``.

    Bytes of one message: ``bytes_per_sample * samples + bytes_fixed``.
    """

    source: int
    target: int
    values: tuple[str, ...]
    bytes_per_sample: float
    bytes_fixed: float = 0.0
    gradient: bool = True
    gradient_bytes_per_sample: float = 0.0
    gradient_bytes_fixed: float = 0.0


@dataclass(frozen=True)
class Reduction:
    """Gradients of ``parameters`` are summed over ``ranks`` before the step.

    One mechanism for data parallelism, tied weights and Chimera's weight replicas. ``stages[i]`` are the
    stages on ``ranks[i]`` whose last backward must have ended there.
    """

    parameters: tuple[str, ...]
    ranks: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    nbytes: float


@dataclass(frozen=True)
class Placement:
    """Stages in topological order, edges, micro-batch sizes (samples, by global number) and reductions."""

    ranks: int
    stages: tuple[PlacedStage, ...]
    edges: tuple[Edge, ...]
    micro_batches: tuple[int, ...]
    reductions: tuple[Reduction, ...] = ()

    def __post_init__(self) -> None:
        for index, stage in enumerate(self.stages):
            self._check_stage(index, stage)
        for edge in self.edges:
            if not 0 <= edge.source < edge.target < len(self.stages):
                raise PlanError(f"edge {edge.source} to {edge.target}: stages must be in topological order")

    def _check_stage(self, index: int, stage: PlacedStage) -> None:
        wanted = [ALL] if stage.batch_scope else list(range(len(self.micro_batches)))
        given = sorted(m for r in stage.replicas for m in r.micro_batches)
        if given != wanted:
            raise PlanError(
                f"stage {index} ({stage.name}): its replicas run micro-batches {given}, expected each of "
                f"{'*' if stage.batch_scope else wanted} exactly once"
            )
        for replica in stage.replicas:
            if not 0 <= replica.rank < self.ranks:
                raise PlanError(f"stage {index} ({stage.name}): rank {replica.rank} is not in 0..{self.ranks - 1}")

    @cached_property
    def into(self) -> tuple[tuple[Edge, ...], ...]:
        """Per stage, the edges that end there."""
        return tuple(tuple(e for e in self.edges if e.target == s) for s in range(len(self.stages)))

    @cached_property
    def out_of(self) -> tuple[tuple[Edge, ...], ...]:
        """Per stage, the edges that start there."""
        return tuple(tuple(e for e in self.edges if e.source == s) for s in range(len(self.stages)))

    def samples(self, micro_batch: int) -> int:
        """Samples of a micro-batch, or of the whole step for ALL."""
        return sum(self.micro_batches) if micro_batch == ALL else self.micro_batches[micro_batch]

    def work(self, rank: int) -> Iterator[tuple[int, int]]:
        """(stage, micro-batch) that ``rank`` runs, stages in order."""
        for index, stage in enumerate(self.stages):
            for replica in stage.replicas:
                if replica.rank == rank:
                    yield from ((index, m) for m in replica.micro_batches)

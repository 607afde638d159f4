"""Chimera: two pipelines in opposite directions over the same ranks, each filling the other's bubbles."""

from plait.errors import ScheduleError
from plait.schedule.action import Action, Schedule
from plait.schedule.placement import PlacedStage, Placement
from plait.schedule.published._rows import Work, backwards, finish, forwards, work_of


def chimera(placement: Placement) -> Schedule:
    """Chimera (Li and Hoefler 2021, sections 3.1 and 3.2), with more micro-batches by direct concatenation (3.5).

    Every stage has two replicas, the first on rank s (the down pipeline), the second on rank D-1-s (the up pipeline),
    each with half the micro-batches. D and N must be even: ScheduleError.
    """
    down, up = _pipelines(placement)
    works = [work_of(placement, rank) for rank in range(placement.ranks)]
    rows = (_row(placement, rank, works[rank], down, up) for rank in range(placement.ranks))
    return finish("chimera", placement, rows)


def _row(placement: Placement, rank: int, work: Work, down: list[int], up: list[int]) -> list[Action]:
    """The rank's actions by slot; no two share one."""
    ranks = placement.ranks
    slots: list[tuple[int, list[Action]]] = []
    for pipeline, position in ((down, rank), (up, ranks - 1 - rank)):
        for index, m in enumerate(pipeline):
            there, back = _slots(ranks, position, index)
            stages = work.get(m, [])
            slots += [(there, forwards(stages, m)), (back, backwards(placement, stages, m))]
    return [action for _, actions in sorted(slots, key=lambda s: s[0]) for action in actions]


def _slots(ranks: int, position: int, index: int) -> tuple[int, int]:
    """Unit slots of forward and backward at a position of a pipeline, for its ``index``-th micro-batch.

    A unit has D/2 micro-batches a pipeline, two slots apart: the pipelines differ in parity, so they never collide.
    A unit fills 2D slots of every rank that differ modulo 2D, so the next one, 2D later, interlocks with it.
    """
    unit, turn = divmod(index, ranks // 2)
    begin = 2 * ranks * unit + 2 * turn
    return begin + position, begin + 2 * ranks - 1 - position


def _pipelines(placement: Placement) -> tuple[list[int], list[int]]:
    """The micro-batches of the down and of the up pipeline; raises ScheduleError."""
    ranks, count = placement.ranks, len(placement.micro_batches)
    for number, what in ((ranks, "ranks"), (count, "micro-batches")):
        if number % 2:
            raise ScheduleError(f"chimera: {number} {what}; it needs an even number")
    plain = [stage for stage in placement.stages if not stage.batch_scope]
    for stage in plain:
        _check_stage(stage, plain[0], ranks)
    _check_edges(placement)
    down, up = (sorted(replica.micro_batches) for replica in plain[0].replicas)
    if len(down) != len(up):
        raise ScheduleError(f"chimera: {len(down)} micro-batches go down and {len(up)} up; each way takes half")
    return down, up


def _check_stage(stage: PlacedStage, first: PlacedStage, ranks: int) -> None:
    if len(stage.replicas) != 2:
        raise ScheduleError(f"chimera: stage {stage.name} has {len(stage.replicas)} replicas; it needs two")
    down, up = stage.replicas
    if down.rank + up.rank != ranks - 1:
        raise ScheduleError(
            f"chimera: stage {stage.name} is on ranks {down.rank} and {up.rank}; its second replica belongs on rank "
            f"{ranks - 1 - down.rank} of {ranks}"
        )
    if set(down.micro_batches) != set(first.replicas[0].micro_batches):
        raise ScheduleError(
            f"chimera: the first replicas of stages {first.name} and {stage.name} run different micro-batches; "
            "all first replicas form the down pipeline"
        )


def _check_edges(placement: Placement) -> None:
    for edge in placement.edges:
        source, target = placement.stages[edge.source], placement.stages[edge.target]
        plain = not (source.batch_scope or target.batch_scope)
        if plain and source.replicas[0].rank > target.replicas[0].rank:
            raise ScheduleError(
                f"chimera: stage {source.name} feeds {target.name} against the down pipeline (rank "
                f"{source.replicas[0].rank} to {target.replicas[0].rank}); order the ranks along the pipeline"
            )

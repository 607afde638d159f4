"""What the published schedules share: the work of a rank, and the passes that finish every schedule."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from plait.schedule.action import ALL, Action, Kind, Schedule
from plait.schedule.barrier import with_barriers
from plait.schedule.placement import Placement
from plait.schedule.recompute import with_recompute

Work = dict[int, list[int]]
"""Micro-batch → the rank's stages for it, in topological order; stages of batch scope left out."""


def work_of(placement: Placement, rank: int) -> Work:
    """What a rank has to do, micro-batches in global order."""
    work: Work = defaultdict(list)
    for stage, micro_batch in placement.work(rank):
        if micro_batch != ALL:
            work[micro_batch].append(stage)
    return dict(sorted(work.items()))


def forwards(stages: list[int], micro_batch: int) -> list[Action]:
    """The stages' forwards of a micro-batch, in topological order."""
    return [Action(Kind.FORWARD, s, micro_batch) for s in stages]


def backwards(placement: Placement, stages: list[int], micro_batch: int) -> list[Action]:
    """The stages' backwards of a micro-batch, in reverse; none of stages that have none."""
    return [Action(Kind.BACKWARD, s, micro_batch) for s in reversed(stages) if placement.stages[s].backward]


def hops(placement: Placement) -> list[int]:
    """Per stage, the most times that its inputs changed ranks on their way; barriers start anew."""
    count: list[int] = []
    for index, stage in enumerate(placement.stages):
        into = [e.source for e in placement.into[index] if not placement.stages[e.source].batch_scope]
        steps = (count[s] + (placement.stages[s].rank_of != stage.rank_of) for s in into)
        count.append(0 if stage.batch_scope else max(steps, default=0))
    return count


def hops_back(placement: Placement) -> list[int]:
    """Per stage, the most times that its outputs change ranks on their way to the end or to a barrier."""
    count = [0] * len(placement.stages)
    for index in reversed(range(len(placement.stages))):
        out = [e.target for e in placement.out_of[index] if not placement.stages[e.target].batch_scope]
        here = placement.stages[index].rank_of
        count[index] = max((count[t] + (placement.stages[t].rank_of != here) for t in out), default=0)
    return count


def finish(
    name: str, placement: Placement, rows: Iterable[Iterable[Action]], options: dict[str, Any] | None = None
) -> Schedule:
    """The training schedule of these rows: barriers and recomputation put in, each row ended by STEP."""
    bare = Schedule(name, tuple(map(tuple, rows)), options or {})
    done = with_recompute(with_barriers(bare, placement, training=True), placement)
    return Schedule(name, tuple((*row, Action(Kind.STEP)) for row in done.rows), done.options)

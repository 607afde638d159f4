"""Evaluation: forwards only, pipelined."""

from plait.schedule.action import Action, Kind, Schedule
from plait.schedule.barrier import with_barriers
from plait.schedule.placement import Placement
from plait.schedule.published._rows import hops, work_of


def forward_only(placement: Placement) -> Schedule:
    """Every micro-batch forward once (N: nothing is kept), each rank in the order in which inputs can come."""
    down = hops(placement)
    rows = (
        sorted(
            (Action(Kind.FORWARD_ONLY, s, m) for m, stages in work_of(placement, rank).items() for s in stages),
            key=lambda a: a.micro_batch + down[a.stage],
        )
        for rank in range(placement.ranks)
    )
    return with_barriers(Schedule("forward-only", tuple(map(tuple, rows))), placement, training=False)

"""One micro-batch at a time: the plain loop of one process, or naive model parallelism on several."""

from plait.schedule.action import Schedule
from plait.schedule.placement import Placement
from plait.schedule.published._rows import backwards, finish, forwards, work_of


def sequential(placement: Placement) -> Schedule:
    """Gradient accumulation without pipelining: forward and backward of a micro-batch, then the next one."""
    rows = (
        [
            action
            for m, stages in work_of(placement, rank).items()
            for action in forwards(stages, m) + backwards(placement, stages, m)
        ]
        for rank in range(placement.ranks)
    )
    return finish("sequential", placement, rows)

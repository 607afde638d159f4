"""GPipe: all forwards, then all backwards."""

from plait.schedule.action import Action, Schedule
from plait.schedule.placement import Placement
from plait.schedule.published._rows import backwards, finish, forwards, hops, hops_back, work_of


def gpipe(placement: Placement) -> Schedule:
    """GPipe (Huang et al. 2019, section 2.3 and figure 2c): backwards take the micro-batches in reverse.

    On a DAG each rank orders its actions by the step at which they could run if every stage took one step, so
    branches that meet on a rank take turns.
    """
    return finish("gpipe", placement, (_row(placement, rank) for rank in range(placement.ranks)))


def _row(placement: Placement, rank: int) -> list[Action]:
    down, up = hops(placement), hops_back(placement)
    work = work_of(placement, rank)
    there = [a for m, stages in work.items() for a in forwards(stages, m)]
    back = [a for m, stages in reversed(work.items()) for a in backwards(placement, stages, m)]
    # Both sorts are stable: what could run at the same step keeps the order of micro-batches, then of stages.
    there.sort(key=lambda a: a.micro_batch + down[a.stage])
    back.sort(key=lambda a: up[a.stage] - a.micro_batch)
    return there + back

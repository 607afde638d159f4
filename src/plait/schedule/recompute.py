"""The recompute pass: stages that keep only their inputs run N, and R right before their backward.

Behind a barrier this is gradient caching: exact, at the price of a second forward.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from plait.schedule.action import BACKWARDS, Action, Kind, Schedule
from plait.schedule.placement import Placement


def with_recompute(schedule: Schedule, placement: Placement) -> Schedule:
    """The schedule with N and R in place of F for the stages whose placement says recompute."""
    again = {i for i, s in enumerate(placement.stages) if s.recompute and s.backward}
    return replace(schedule, rows=tuple(tuple(_row(row, again)) for row in schedule.rows))


def _row(row: Iterable[Action], again: set[int]) -> Iterator[Action]:
    for action in row:
        if action.stage not in again:
            yield action
        elif action.kind is Kind.FORWARD:
            yield replace(action, kind=Kind.FORWARD_ONLY)
        elif action.kind in BACKWARDS:
            yield Action(Kind.RECOMPUTE, action.stage, action.micro_batch)
            yield action
        else:
            yield action

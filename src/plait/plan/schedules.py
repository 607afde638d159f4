"""The schedule that a plan asks for: its explicit order, or one by name."""

from collections.abc import Callable

from plait.coordinate.order import branch_aware
from plait.errors import PlanError, ScheduleError
from plait.plan.compile import placement_of, prices_of
from plait.plan.plan import Plan
from plait.schedule.action import Schedule
from plait.schedule.placement import Placement
from plait.schedule.published import chimera, gpipe, one_f_one_b, sequential

BY_PLACEMENT: dict[str, Callable[[Placement], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "chimera": chimera,
    "sequential": sequential,
}
"""Schedules that need no prices."""

NAMES = (*BY_PLACEMENT, "branch_aware")


def schedule_of(plan: Plan) -> Schedule:
    """The plan's schedule: ``order`` where it is given, else made by its name.

    Raises PlanError for a name that isn't known or an order that can't be read, ScheduleError where the
    schedule doesn't suit the placement.
    """
    asked = plan.schedule
    if asked.order is not None:
        return _explicit(plan, asked.order)
    name = asked.name.replace("-", "_")
    if name in BY_PLACEMENT:
        return BY_PLACEMENT[name](placement_of(plan))
    if name == "branch_aware":
        return branch_aware(placement_of(plan), prices_of(plan))
    raise PlanError(f"schedule.name: {asked.name!r} is not known; it can be {', '.join(NAMES)}, or give an order")


def _explicit(plan: Plan, order: tuple[str, ...]) -> Schedule:
    if len(order) != len(plan.devices):
        raise PlanError(f"schedule.order: {len(order)} rows for {len(plan.devices)} ranks; each rank needs its row")
    try:
        return Schedule.from_text(plan.schedule.name, list(order), dict(plan.schedule.options))
    except ScheduleError as error:
        raise PlanError(f"schedule.order: {error}") from None

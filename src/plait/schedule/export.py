"""Schedules in the CSV form of ``torch.distributed.pipelining`` (its ``compute_only`` format).

One line per rank, one cell per action: ``0F0,0F1,0B0``. It knows F, B, I and W on chains of stages; what it has no
word for is refused.
"""

from plait.errors import ScheduleError
from plait.schedule.action import ALL, Action, Kind, Schedule

_KNOWN = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT})


def to_csv(schedule: Schedule) -> str:
    """The schedule as CSV; STEP is left out (there it belongs to the caller). Raises ScheduleError."""
    return "".join(",".join(_cell(a) for a in row if a.kind is not Kind.STEP) + "\n" for row in schedule.rows)


def from_csv(name: str, text: str) -> Schedule:
    """The training schedule in a CSV text, each row ended by STEP; empty cells are idle slots. Raises ScheduleError."""
    rows = []
    for line in text.splitlines():
        actions = [Action.parse(cell.strip()) for cell in line.split(",") if cell.strip()]
        for action in actions:
            _cell(action)
        rows.append((*actions, Action(Kind.STEP)))
    return Schedule(name, tuple(rows))


def _cell(action: Action) -> str:
    if action.kind not in _KNOWN or action.micro_batch == ALL or action.overlaps:
        raise ScheduleError(
            f"{action} has no word in torch.distributed.pipelining's CSV form, which knows F, B, I, W of a micro-batch"
        )
    return str(action)

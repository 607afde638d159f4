"""Where each rank's time goes."""

from dataclasses import dataclass

from plait.report.words import kind_of
from plait.schedule.action import Kind
from plait.simulate.timeline import Lane, Timeline


@dataclass(frozen=True, slots=True)
class Share:
    """Seconds of one rank in one step; they add up to the step time."""

    compute: float
    """Forwards and backwards."""
    step: float
    """The optimizer's step."""
    waiting: float
    """For messages of other ranks."""
    barrier: float
    """For every rank to end its step."""
    idle: float
    """The rest: before the first action, the engine's own work, sums of gradients not hidden by compute."""


PARTS = ("compute", "step", "waiting", "barrier", "idle")
TITLES = {
    "compute": "computing",
    "step": "optimizer step",
    "waiting": "waiting for messages",
    "barrier": "waiting for the others' step",
    "idle": "other",
}


def breakdown(timeline: Timeline) -> tuple[Share, ...]:
    """Per rank, where the step's time went."""
    spent = [dict.fromkeys(PARTS, 0.0) for _ in timeline.ranks]
    for event in timeline.events():
        seconds = event.end - event.start
        if event.lane is Lane.COMPUTE:
            spent[event.rank]["step" if kind_of(event) is Kind.STEP else "compute"] += seconds
        elif event.lane is Lane.WAIT:
            spent[event.rank]["barrier" if event.label == "STEP" else "waiting"] += seconds
    for parts in spent:
        parts["idle"] = timeline.step_time - sum(parts.values())
    return tuple(Share(**parts) for parts in spent)


def mean_seconds(timeline: Timeline) -> dict[tuple[int, Kind], float]:
    """(stage, kind) → mean seconds of such an action."""
    total: dict[tuple[int, Kind], tuple[float, int]] = {}
    for event in timeline.events():
        kind = kind_of(event)
        if kind is not None and event.stage >= 0:
            seconds, count = total.get((event.stage, kind), (0.0, 0))
            total[event.stage, kind] = (seconds + event.end - event.start, count + 1)
    return {key: seconds / count for key, (seconds, count) in total.items()}

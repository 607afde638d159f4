"""Branch-aware order: the first coordinator.

Placement puts branches on the same ranks in opposite directions; this finds, for each rank, the order of their
actions. Several priority rules are tried in a list scheduler, the best few of their schedules simulated, and the one
with the least step time kept (at equal times the one with the least memory).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from plait.coordinate.list_schedule import list_schedule
from plait.coordinate.room import Room, bound_stages
from plait.coordinate.tasks import Task, longest_paths, task_graph
from plait.errors import ScheduleError
from plait.schedule.action import BACKWARDS, Action, Kind, Schedule
from plait.schedule.lower import lower
from plait.schedule.placement import Placement
from plait.schedule.published import gpipe, one_f_one_b, sequential
from plait.simulate.memory import check_memory
from plait.simulate.prices import Prices
from plait.simulate.simulate import simulate
from plait.simulate.timeline import Timeline

NAME = "branch-aware"
SIMULATED = 3
"""How many of the list scheduler's schedules are simulated."""

Rule = tuple[str, list[int]]
"""A name and, per task, its place in the order of urgency."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    schedule: Schedule
    timeline: Timeline
    rule: str

    def merit(self, prices: Prices) -> tuple[bool, float, float]:
        """Less is better: what fits the memory by step time, then memory; what does not by memory."""
        shares = zip(self.timeline.peak_bytes, prices.capacity, strict=True)
        use = max((_share(float(peak), capacity) for peak, capacity in shares), default=0.0)
        # Rounded, so that times that differ by rounding alone are decided by memory.
        time = float(f"{self.timeline.step_time:.9g}")
        return (True, use, time) if use > 1.0 else (False, time, use)


def _share(peak: float, capacity: float) -> float:
    return peak / capacity if capacity else inf if peak else 0.0


def branch_aware(placement: Placement, prices: Prices, *, split_backward: bool = False, seed: int = 0) -> Schedule:
    """The best training schedule found for this placement at these prices, within each rank's memory.

    ``split_backward`` makes I and W of B (not where a stage recomputes or has batch scope). ``seed`` varies the rules
    that are tried by chance. Raises PlanError where no order tried fits the memory, naming rank and stage.
    """
    tasks = task_graph(placement, prices, split_backward=split_backward)
    candidates = [
        _candidate(schedule, placement, prices, rule)
        for rule, schedule in (*_listed(placement, prices, tasks, seed), *_published(placement))
    ]
    best = min(candidates, key=lambda c: c.merit(prices))
    if best.merit(prices)[0]:
        # One micro-batch at a time needs the least; if that does not fit either, it says by how much.
        least = _candidate(sequential(placement), placement, prices, "sequential")
        best = min(best, least, key=lambda c: c.merit(prices))
    check_memory(best.timeline, prices)
    return Schedule(NAME, best.schedule.rows, {"split_backward": split_backward, "seed": seed, "rule": best.rule})


def _candidate(schedule: Schedule, placement: Placement, prices: Prices, rule: str) -> _Candidate:
    return _Candidate(schedule, simulate(lower(schedule, placement), prices), rule)


def _published(placement: Placement) -> Iterator[tuple[str, Schedule]]:
    """Known schedules that take this placement: never be worse than they are."""
    for make in (gpipe, one_f_one_b):
        try:
            yield make.__name__, make(placement)
        except ScheduleError:
            continue


def _listed(placement: Placement, prices: Prices, tasks: list[Task], seed: int) -> list[tuple[str, Schedule]]:
    """The list scheduler's best schedules, one a rule."""
    found: dict[tuple[tuple[Action, ...], ...], tuple[float, str]] = {}
    for name, urgency in _rules(placement, tasks, seed):
        rows, end = list_schedule(tasks, urgency, _rooms(placement, prices, tasks), placement.ranks)
        found.setdefault(tuple((*row, Action(Kind.STEP)) for row in rows), (end, name))
    best = sorted(found.items(), key=lambda item: item[1])[:SIMULATED]
    return [(name, Schedule(NAME, rows)) for rows, (_, name) in best]


def _rooms(placement: Placement, prices: Prices, tasks: list[Task]) -> list[Room]:
    """Each rank's memory beside what is fixed."""
    bound = bound_stages(placement)
    return [
        Room([t for t in tasks if t.rank == rank], prices.capacity[rank] - prices.fixed_bytes[rank], bound)
        for rank in range(placement.ranks)
    ]


def _rules(placement: Placement, tasks: list[Task], seed: int) -> Iterator[Rule]:
    """Priorities between two poles: the longest path first, and the oldest micro-batch first.

    ``age`` is how many seconds of path one micro-batch of age is worth, as a share of the busiest rank's work per
    micro-batch. W always comes last: it fills what is idle.
    """
    paths = longest_paths(tasks)
    period = _period(placement, tasks)
    random = Random(seed)  # noqa: S311 (not for secrets)
    for age in (0.0, 0.25, 0.5, 1.0, 4.0):
        for backward_first in (False, True):
            name = f"age {age:g}{', backward first' if backward_first else ''}"
            yield name, _places(tasks, _urgency(tasks, paths, age * period, backward_first=backward_first))
    for number in range(2):
        shaken = [path * random.uniform(0.9, 1.1) for path in paths]
        yield f"shaken {number}", _places(tasks, _urgency(tasks, shaken, 0.5 * period, backward_first=False))


def _period(placement: Placement, tasks: list[Task]) -> float:
    busy = [0.0] * placement.ranks
    for task in tasks:
        busy[task.rank] += task.seconds
    return max(busy) / len(placement.micro_batches)


Key = tuple[int, float, int]


def _urgency(
    tasks: list[Task], paths: list[float], second_per_age: float, *, backward_first: bool
) -> Callable[[int], Key]:
    def key(index: int) -> Key:
        action = tasks[index].action
        goes_back = action.kind in BACKWARDS
        late = 3 if action.kind is Kind.WEIGHT_GRADIENT else 1
        group = 0 if goes_back and backward_first else late
        return group, max(action.micro_batch, 0) * second_per_age - paths[index], not goes_back

    return key


def _places(tasks: list[Task], key: Callable[[int], Key]) -> list[int]:
    """Per task, its place when sorted by the key, older micro-batches and earlier tasks first on ties."""
    places = [0] * len(tasks)
    for place, index in enumerate(sorted(range(len(tasks)), key=key)):
        places[index] = place
    return places

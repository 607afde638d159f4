"""List scheduling: whenever a rank is free it starts the most urgent task that is ready and fits its memory.

The clock runs as in the simulator: messages hold their pair first come first served, then take the latency.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence

from plait.coordinate.room import Room
from plait.coordinate.tasks import LOCAL, Task
from plait.schedule.action import Action

_ARRIVAL, _END = 0, 1


def list_schedule(
    tasks: list[Task], urgency: Sequence[int], rooms: Sequence[Room] | None, ranks: int
) -> tuple[list[list[Action]], float]:
    """Each rank's actions in the order of their starts, and when the last ends.

    ``urgency``: per task, its place among all (0 first). ``rooms``: per rank, or None where memory need not be watched.
    """
    run = _Run(tasks, urgency, rooms, ranks)
    end = run.to_the_end()
    return run.rows, end


class _Run:
    def __init__(self, tasks: list[Task], urgency: Sequence[int], rooms: Sequence[Room] | None, ranks: int) -> None:
        self.rows: list[list[Action]] = [[] for _ in range(ranks)]
        self._tasks, self._urgency, self._rooms = tasks, urgency, rooms
        self._waits = [task.waits for task in tasks]
        self._latest = [0.0] * len(tasks)
        self._ready: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self._idle = [True] * ranks
        self._free: dict[tuple[int, int], float] = defaultdict(float)
        self._events: list[tuple[float, int, int]] = [
            (0.0, _ARRIVAL, index) for index, task in enumerate(tasks) if not task.waits
        ]

    def to_the_end(self) -> float:
        now = 0.0
        while self._events:
            now = self._events[0][0]
            touched: set[int] = set()
            while self._events and self._events[0][0] == now:
                _, kind, index = heapq.heappop(self._events)
                touched.add(self._tasks[index].rank)
                if kind == _ARRIVAL:
                    self._make_ready(index)
                else:
                    self._end(index, now)
            for rank in touched:
                if self._idle[rank]:
                    self._start_best(rank, now)
        return now

    def _make_ready(self, index: int) -> None:
        heapq.heappush(self._ready[self._tasks[index].rank], (self._urgency[index], index))

    def _end(self, index: int, now: float) -> None:
        task = self._tasks[index]
        self._idle[task.rank] = True
        if self._rooms:
            self._rooms[task.rank].end(task)
        # What is needed first is sent first, as lowering does.
        for link in sorted(task.links, key=lambda k: self._urgency[k.target]):
            at = now
            if link.pair != LOCAL:
                self._free[link.pair] = max(now, self._free[link.pair]) + link.occupies
                at = self._free[link.pair] + link.latency
            self._arrive(link.target, at)

    def _arrive(self, target: int, at: float) -> None:
        """Count down what the target waits for; the latest to arrive makes it ready."""
        self._waits[target] -= 1
        self._latest[target] = max(self._latest[target], at)
        if not self._waits[target]:
            heapq.heappush(self._events, (self._latest[target], _ARRIVAL, target))

    def _start_best(self, rank: int, now: float) -> None:
        ready, refused = self._ready[rank], []
        while ready:
            entry = heapq.heappop(ready)
            task = self._tasks[entry[1]]
            if not self._rooms or self._rooms[rank].fits(task):
                self._start(entry[1], now)
                break
            refused.append(entry)
        for entry in refused:
            heapq.heappush(ready, entry)

    def _start(self, index: int, now: float) -> None:
        task = self._tasks[index]
        self.rows[task.rank] += task.actions
        self._idle[task.rank] = False
        if self._rooms:
            self._rooms[task.rank].start(task)
        heapq.heappush(self._events, (now + task.seconds, _END, index))

"""Room: which forwards a rank may start under its memory cap, without ever getting stuck.

The rank's oldest unfinished micro-batch may always go on, and a younger one only takes what leaves room for all that
the oldest can still claim. So the oldest micro-batch of all can go on everywhere, and nobody waits forever.
"""

from collections import defaultdict

from plait.coordinate.tasks import Task


class Room:
    """Bytes of activations on one rank while a schedule is being made."""

    def __init__(self, tasks: list[Task], capacity: float) -> None:
        self._capacity = capacity * (1 + 1e-12)
        self._used = 0.0
        self._held: dict[int, float] = defaultdict(float)
        self._unfinished: dict[int, int] = defaultdict(int)
        claims: dict[int, float] = defaultdict(float)
        for task in tasks:
            claims[task.action.micro_batch] += max(task.claims, 0.0)
            self._unfinished[task.action.micro_batch] += task.frees > 0
        self._most = max(claims.values(), default=0.0)
        self._order = [m for m in sorted(self._unfinished, reverse=True) if self._unfinished[m]]

    def fits(self, task: Task) -> bool:
        """Whether the task may start now."""
        if task.claims <= 0 or not self._order or task.action.micro_batch == self._order[-1]:
            return True
        reserved = self._most - self._held[self._order[-1]]
        return self._used + task.claims + reserved <= self._capacity

    def start(self, task: Task) -> None:
        """Claim what the task claims."""
        self._change(task, task.claims)

    def end(self, task: Task) -> None:
        """Free what the task frees."""
        self._change(task, -task.frees)
        self._unfinished[task.action.micro_batch] -= task.frees > 0
        while self._order and not self._unfinished[self._order[-1]]:
            self._order.pop()

    def _change(self, task: Task, nbytes: float) -> None:
        self._used += nbytes
        self._held[task.action.micro_batch] += nbytes

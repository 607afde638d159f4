"""Room: which forwards a rank may start under its memory cap, without ever getting stuck.

Where a stage of batch scope depends on a stage, all that the stage holds must be held until then: that memory is set
aside, and such *bound* stages are never refused. Of all others, the rank's oldest unfinished micro-batch may always go
on, and a younger one only takes what leaves room for all that the oldest can still claim. So the oldest micro-batch of
all can go on everywhere, and nobody waits forever.
"""

from collections import defaultdict

from plait.coordinate.tasks import Task
from plait.schedule.placement import Placement


def bound_stages(placement: Placement) -> set[int]:
    """The stages of batch scope, and those that they depend on."""
    bound: set[int] = set()
    for index in reversed(range(len(placement.stages))):
        if placement.stages[index].batch_scope or any(e.target in bound for e in placement.out_of[index]):
            bound.add(index)
    return bound


class Room:
    """Bytes of activations on one rank while a schedule is being made."""

    def __init__(self, tasks: list[Task], capacity: float, bound: set[int]) -> None:
        self._capacity = capacity * (1 + 1e-12)
        self._bound = bound
        self._used = 0.0
        self._held: dict[int, float] = defaultdict(float)
        self._unfinished: dict[int, int] = defaultdict(int)
        claims: dict[int, float] = defaultdict(float)
        for task in tasks:
            if not self._is_bound(task):
                claims[task.action.micro_batch] += max(task.claims, 0.0)
                self._unfinished[task.action.micro_batch] += task.frees > 0
            elif not task.frees:
                self._used += task.claims
        self._most = max(claims.values(), default=0.0)
        self._order = [m for m in sorted(self._unfinished, reverse=True) if self._unfinished[m]]

    def fits(self, task: Task) -> bool:
        """Whether the task may start now."""
        if task.claims <= 0 or not self._order:
            return True
        if self._is_bound(task):
            # Recomputing: what is in the way is in flight and will end, for it never waits for a bound backward.
            return not task.frees or self._used + task.claims <= self._capacity or not any(self._held.values())
        oldest = self._order[-1]
        if task.action.micro_batch == oldest:
            return True
        return self._used + task.claims + self._most - self._held[oldest] <= self._capacity

    def start(self, task: Task) -> None:
        """Claim what the task claims; what bound forwards claim has been set aside."""
        if not self._is_bound(task):
            self._held[task.action.micro_batch] += task.claims
            self._used += task.claims
        elif task.frees:
            self._used += task.claims

    def end(self, task: Task) -> None:
        """Free what the task frees."""
        self._used -= task.frees
        if not self._is_bound(task) and task.frees:
            micro_batch = task.action.micro_batch
            self._unfinished[micro_batch] -= 1
            # Sums of fractions may leave a rest that is nothing.
            self._held[micro_batch] = self._unfinished[micro_batch] and self._held[micro_batch] - task.frees
        while self._order and not self._unfinished[self._order[-1]]:
            self._order.pop()

    def _is_bound(self, task: Task) -> bool:
        return task.action.stage in self._bound

"""Pacing: on one machine, slow devices and links are imitated by waiting out their priced durations."""

import time
from collections import defaultdict

from plait.runtime.clocks import now
from plait.simulate.prices import Prices


class Pace:
    """The priced durations, and when each directed pair of ranks is free again."""

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self._free: dict[tuple[int, int], float] = defaultdict(float)

    def delivery(self, sender: int, receiver: int, nbytes: float, handed_over: float) -> float:
        """When a message arrives: it queues behind the pair's former ones, as in the simulator."""
        link = self.prices.links[sender, receiver]
        begin = max(handed_over, self._free[sender, receiver])
        self._free[sender, receiver] = begin + nbytes / link.bandwidth
        return self._free[sender, receiver] + link.latency


def sleep_until(when: float) -> None:
    """Wait until ``now() >= when``; the processor is left to others meanwhile."""
    while (left := when - now()) > 0:
        time.sleep(left)

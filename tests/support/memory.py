"""Bytes of memory that code takes on the CPU, temporary ones of operators included."""

from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar

from torch.profiler import ProfilerActivity, profile

Result = TypeVar("Result")


def taken(run: Callable[[], Result]) -> tuple[Result, int, int]:
    """What ``run`` gives, the most bytes held at one time meanwhile, and those still held at its end."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = run()
    recorded = profiler.profiler
    assert recorded is not None
    assert recorded.kineto_results is not None
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    held = list(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))) or [0]
    return result, max(held), held[-1]

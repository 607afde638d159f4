"""Timelines as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plait.files import write_text
from plait.report.words import batch_words, describe
from plait.simulate.timeline import LANES, Event, Lane, Timeline

_MICRO = 1e6
"""The format counts microseconds."""


def write_trace(path: str | os.PathLike[str], timelines: Mapping[str, Timeline]) -> None:
    """Write the timelines side by side, as Trace Event Format JSON; raises FileError.

    Each rank of each timeline is a process with a thread for each lane, arrows from a message's sending to the wait
    that it ends, and a counter for memory. Format: Google, Trace Event Format (2016).
    """
    events: list[dict[str, Any]] = []
    for index, (origin, timeline) in enumerate(timelines.items()):
        events += _timeline(timeline, origin, index * len(timeline.ranks))
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _timeline(timeline: Timeline, origin: str, first: int) -> Iterator[dict[str, Any]]:
    for rank, name in enumerate(timeline.ranks):
        yield _named("process_name", first + rank, 0, f"{origin}: rank {rank} {name}")
        yield {"ph": "M", "name": "process_sort_index", "pid": first + rank, "args": {"sort_index": first + rank}}
    events = list(timeline.events())
    threads = _threads(events)
    for rank, thread in sorted({(event.rank, thread) for event, thread in zip(events, threads, strict=True)}):
        yield _named("thread_name", first + rank, thread, str(LANES[thread % len(LANES)]))
    early = min((event.start for event in events), default=0.0)
    begin = min(0.0, early)  # a rank may begin a step before the last one has ended the former; no time is negative
    for event, thread in zip(events, threads, strict=True):
        yield _slice(event, thread, timeline, first, begin)
    yield from _arrows(events, threads, first, begin)
    samples = zip(timeline.memory_rank, timeline.memory_time, timeline.memory_bytes, strict=True)
    for rank, time, nbytes in samples:
        yield {
            "ph": "C",
            "name": "memory",
            "pid": first + int(rank),
            "ts": max(0.0, float(time) - begin) * _MICRO,
            "args": {"bytes": float(nbytes)},
        }


def _threads(events: Sequence[Event]) -> list[int]:
    """A thread for each event: its lane's, or a further one while that is taken, since slices of a thread must nest."""
    free: dict[tuple[int, int], float] = {}
    threads = []
    for event in events:
        thread = LANES.index(event.lane)
        while free.get((event.rank, thread), event.start) > event.start:
            thread += len(LANES)
        free[event.rank, thread] = event.end
        threads.append(thread)
    return threads


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(event: Event, thread: int, timeline: Timeline, first: int, begin: float) -> dict[str, Any]:
    args: dict[str, Any] = {"what": describe(event, timeline.stages)}
    if event.stage >= 0:
        args |= {"stage": timeline.stages[event.stage], "on": batch_words(event.micro_batch)}
    if event.nbytes:
        args["bytes"] = event.nbytes
    return {
        "ph": "X",
        "name": event.label,
        "cat": str(event.lane),
        "pid": first + event.rank,
        "tid": thread,
        "ts": (event.start - begin) * _MICRO,
        "dur": (event.end - event.start) * _MICRO,
        "args": args,
    }


def _arrows(events: Sequence[Event], threads: Sequence[int], first: int, begin: float) -> Iterator[dict[str, Any]]:
    """From each message's sending to the wait of the same name on another rank."""
    placed = list(zip(events, threads, strict=True))
    waits = {e.label: (e, thread) for e, thread in placed if e.lane is Lane.WAIT and ">" in e.label}
    for number, (event, thread) in enumerate(placed):
        if event.lane is not Lane.SEND or event.label not in waits or waits[event.label][0].rank == event.rank:
            continue
        wait, waiting = waits[event.label]
        common = {"name": event.label, "cat": "message", "id": first * 1_000_000 + number, "bp": "e"}
        for kind, rank, on, time in (("s", event.rank, thread, event.start), ("f", wait.rank, waiting, wait.end)):
            yield {**common, "ph": kind, "pid": first + rank, "tid": on, "ts": (time - begin) * _MICRO}

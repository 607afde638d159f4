"""Timelines as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

import json
import os
from collections.abc import Iterator, Mapping
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
        for lane, title in enumerate(LANES):
            yield _named("thread_name", first + rank, lane, str(title))
    for event in timeline.events():
        yield _slice(event, timeline, first)
    yield from _arrows(timeline, first)
    samples = zip(timeline.memory_rank, timeline.memory_time, timeline.memory_bytes, strict=True)
    for rank, time, nbytes in samples:
        yield {
            "ph": "C",
            "name": "memory",
            "pid": first + int(rank),
            "ts": max(0.0, float(time)) * _MICRO,
            "args": {"bytes": float(nbytes)},
        }


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _slice(event: Event, timeline: Timeline, first: int) -> dict[str, Any]:
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
        "tid": LANES.index(event.lane),
        "ts": event.start * _MICRO,
        "dur": (event.end - event.start) * _MICRO,
        "args": args,
    }


def _arrows(timeline: Timeline, first: int) -> Iterator[dict[str, Any]]:
    """From each message's sending to the wait of the same name on another rank."""
    waits = {e.label: e for e in timeline.events() if e.lane is Lane.WAIT and ">" in e.label}
    for number, event in enumerate(timeline.events()):
        wait = waits.get(event.label)
        if event.lane is not Lane.SEND or wait is None or wait.rank == event.rank:
            continue
        common = {"name": event.label, "cat": "message", "id": first * 1_000_000 + number}
        begin, end = (event, event.start), (wait, wait.end)
        for kind, (place, time) in (("s", begin), ("f", end)):
            yield {
                **common,
                "ph": kind,
                "bp": "e",
                "pid": first + place.rank,
                "tid": LANES.index(place.lane),
                "ts": time * _MICRO,
            }

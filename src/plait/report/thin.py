"""Timelines too long to draw, made drawable."""

from plait.report.words import kind_of
from plait.simulate.timeline import Event, Lane, Timeline

MOST = 20_000
"""Events that a page still draws smoothly."""


def drawable(timeline: Timeline, most: int = MOST) -> tuple[list[Event], str]:
    """At most about ``most`` events, and what was left out, in words (empty if nothing)."""
    events = list(timeline.events())
    if len(events) <= most:
        return events, ""
    compute = [e for e in events if e.lane is Lane.COMPUTE]
    if len(compute) <= most:
        return compute, f"messages and waits are left out: {len(events)} events are too many to draw"
    merged = _merged(compute)
    note = f"actions of the same kind and stage that follow each other are drawn as one ({len(events)} events)"
    if len(merged) <= most:
        return merged, note
    kept = sorted(merged, key=lambda e: e.start)[:most]
    return kept, f"only the first {kept[-1].end:.3g} s are drawn, and {note}"


def _merged(events: list[Event]) -> list[Event]:
    """Runs of actions of one rank, stage and kind as single events."""
    last: dict[int, Event] = {}
    done: list[Event] = []
    for event in events:
        before = last.get(event.rank)
        if before is not None and before.stage == event.stage and kind_of(before) is kind_of(event):
            last[event.rank] = Event(
                event.rank, event.lane, before.label, before.start, event.end, event.stage, before.micro_batch
            )
            continue
        if before is not None:
            done.append(before)
        last[event.rank] = event
    return done + list(last.values())

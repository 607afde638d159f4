"""Where time goes adds up; too long timelines are thinned; events are put in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.report.breakdown import PARTS, breakdown, mean_seconds
from plait.report.thin import drawable
from plait.report.words import describe
from plait.schedule.action import Kind
from plait.simulate.timeline import Event, Lane, Timeline
from support.report_case import Case


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    ranks = draw(st.integers(1, 4))
    events, last = [], 0.0
    for rank in range(ranks):
        now = 0.0
        for label in draw(st.lists(st.sampled_from(["0F0", "0B0", "1W1", "STEP", "wait", "barrier"]), max_size=8)):
            now += draw(st.floats(0, 1))
            end = now + draw(st.floats(0, 1))
            lane = Lane.WAIT if label in ("wait", "barrier") else Lane.COMPUTE
            name = {"wait": "0>1:F0", "barrier": "STEP"}.get(label, label)
            events.append(Event(rank, lane, name, now, end, 0 if lane is Lane.COMPUTE else -1, 0))
            now = end
        last = max(last, now)
    names = tuple(f"d{r}" for r in range(ranks))
    return Timeline.build(events, [], ranks=names, stages=("a", "b"), step_time=last, origin="predicted")


@given(timelines())
def test_the_parts_of_each_rank_add_up_to_the_step(timeline: Timeline) -> None:
    for share in breakdown(timeline):
        parts = [getattr(share, part) for part in PARTS]
        assert sum(parts) == pytest.approx(timeline.step_time)
        assert min(parts) >= -1e-9


@given(timelines())
def test_compute_is_what_the_timeline_calls_busy(timeline: Timeline) -> None:
    for rank, share in enumerate(breakdown(timeline)):
        assert share.compute + share.step == pytest.approx(timeline.busy[rank])


def test_means_are_taken_per_stage_and_kind(case: Case) -> None:
    means = mean_seconds(case.predicted)
    assert means[0, Kind.FORWARD] == pytest.approx(2e-3)
    assert means[0, Kind.BACKWARD] == pytest.approx(4e-3)


def test_a_short_timeline_is_drawn_whole(case: Case) -> None:
    events, note = drawable(case.predicted)
    assert events == list(case.predicted.events())
    assert note == ""


@pytest.mark.parametrize("most", [1, 10, 40, 80])
def test_a_long_one_is_thinned_and_says_how(case: Case, most: int) -> None:
    events, note = drawable(case.predicted, most)
    assert len(events) <= max(most, 1)
    assert "drawn" in note or "draw" in note
    busy = sum(e.end - e.start for e in case.predicted.events() if e.lane is Lane.COMPUTE)
    assert sum(e.end - e.start for e in events) <= max(busy, case.predicted.step_time * 4)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Event(0, Lane.COMPUTE, "1F3", 0, 1, 1, 3), "forward of b on micro-batch 3"),
        (Event(0, Lane.COMPUTE, "1B*", 0, 1, 1, -1), "backward of b on the whole batch"),
        (Event(0, Lane.COMPUTE, "STEP", 0, 1), "optimizer step"),
        (Event(0, Lane.WAIT, "0>1:F2", 0, 1, 0, 2), "waits for values of a to b, micro-batch 2"),
        (Event(0, Lane.SEND, "1>0:B2", 0, 1, 1, 2), "sends gradients of b to a, micro-batch 2"),
        (Event(0, Lane.WAIT, "STEP", 0, 1), "waits for every rank to end its step"),
        (Event(0, Lane.REDUCE, "reduce 0", 0, 1), "gradients summed over ranks"),
        (Event(0, Lane.SEND, "odd label", 0, 1), "sends odd label"),
    ],
)
def test_events_are_put_in_words(event: Event, words: str) -> None:
    assert describe(event, ("a", "b")) == words

"""The branch-aware order: good, exact at barriers, within memory."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.coordinate.order import branch_aware
from plait.errors import PlanError
from plait.schedule.action import Kind, Schedule
from plait.schedule.layouts import chain, linear, opposed, recomputing
from plait.schedule.lower import lower
from plait.schedule.placement import Placement
from plait.schedule.published import gpipe, one_f_one_b, sequential
from plait.schedule.verify import verify
from plait.simulate.prices import FREE, LinkPrice, Prices, StagePrice, uniform
from plait.simulate.simulate import simulate
from plait.simulate.timeline import Timeline
from schedule_strategies import Case, cases, trainable

UNIT = StagePrice(forward=1.0, input_gradient=1.0, weight_gradient=1.0, held_bytes=1.0, kept_bytes=0.25)
NOTHING = StagePrice(0.0, 0.0, 0.0, 0.0, 0.0)


def simulated(schedule: Schedule, placement: Placement, prices: Prices) -> Timeline:
    programs = lower(schedule, placement)
    verify(programs)
    return simulate(programs, prices)


def _prices(placement: Placement, link: LinkPrice = FREE, capacity: float = inf) -> Prices:
    """Every stage alike, but the loss, the last stage, for nothing."""
    return uniform(placement, UNIT, link, capacity=capacity, overrides=[(len(placement.stages) - 1, NOTHING)])


@pytest.mark.parametrize("count", [2, 4, 8, 15])
@pytest.mark.parametrize("link", [FREE, LinkPrice(0.1, 20.0), LinkPrice(1.0, 2.0)])
def test_opposed_branches_beat_pipelines_over_the_same_layers_in_one_line(count: int, link: LinkPrice) -> None:
    placement = opposed(4, count)
    line = linear(placement, 4)
    ours = simulated(branch_aware(placement, _prices(placement, link)), placement, _prices(placement, link)).step_time
    for make in (gpipe, one_f_one_b):
        assert ours <= simulated(make(line), line, _prices(line, link)).step_time


def test_opposed_branches_fill_each_others_idle_time() -> None:
    """Work is 6 per micro-batch and rank; a branch alone must start and end, two share that: 3 idle in 99."""
    placement = opposed(4, 16)
    assert simulated(branch_aware(placement, _prices(placement)), placement, _prices(placement)).step_time <= 99


def test_weight_gradients_fill_what_is_left() -> None:
    placement, prices = opposed(4, 8), _prices(opposed(4, 8))
    whole, split = (branch_aware(placement, prices, split_backward=s) for s in (False, True))
    assert {a.kind for row in split.rows for a in row} >= {Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT}
    assert simulated(split, placement, prices).step_time < simulated(whole, placement, prices).step_time


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_it_is_never_slower_than_what_the_papers_do_on_the_same_placement(make: object) -> None:
    placement = chain(4, 8)
    prices = uniform(placement, UNIT, LinkPrice(0.3, 4.0))
    ours = simulated(branch_aware(placement, prices), placement, prices)
    assert ours.step_time <= simulated(make(placement), placement, prices).step_time  # type: ignore[operator]


def test_at_a_barrier_every_forward_comes_first() -> None:
    placement = recomputing(opposed(3, 4, batch_scope=True), [1, 4])
    schedule = branch_aware(placement, _prices(placement), split_backward=True)
    simulated(schedule, placement, _prices(placement))
    row = [str(a) for a in schedule.rows[2]]
    assert row.index("6F*") == 8
    assert {a.kind for r in schedule.rows for a in r if a.stage in (1, 4)} == {
        Kind.FORWARD_ONLY, Kind.RECOMPUTE, Kind.BACKWARD,
    }  # fmt: skip


def test_each_row_ends_with_one_step_and_the_same_seed_gives_the_same() -> None:
    placement = opposed(3, 5)
    schedule = branch_aware(placement, _prices(placement), seed=3)
    assert all([a.kind for a in row].index(Kind.STEP) == len(row) - 1 for row in schedule.rows)
    assert schedule == branch_aware(placement, _prices(placement), seed=3)
    assert (schedule.name, schedule.options["seed"]) == ("branch-aware", 3)


@pytest.mark.parametrize("capacity", [2.0, 3.0, 4.0, 6.0])
def test_it_keeps_to_the_memory_and_uses_what_there_is(capacity: float) -> None:
    placement = opposed(4, 8)
    prices = _prices(placement, capacity=capacity)
    timeline = simulated(branch_aware(placement, prices), placement, prices)
    assert max(timeline.peak_bytes) <= capacity
    assert timeline.step_time < simulated(sequential(placement), placement, prices).step_time


def test_more_memory_than_there_is_is_named_with_the_least_that_is_needed() -> None:
    placement = opposed(4, 8)
    prices = _prices(placement, capacity=1.5)
    with pytest.raises(PlanError, match=r"rank . \(rank .\) needs 2 B at .*, it has 1\.5 B; .*recompute would fit"):
        branch_aware(placement, prices)


def test_a_barrier_that_holds_too_much_is_named() -> None:
    placement = opposed(2, 8, batch_scope=True)
    with pytest.raises(PlanError, match=r"needs 16 B at .*, it has 8 B; .* recompute would fit"):
        branch_aware(placement, _prices(placement, capacity=8.0))
    again = recomputing(placement, range(4))
    simulated(branch_aware(again, _prices(again, capacity=8.0)), again, _prices(again, capacity=8.0))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(), st.integers(0, 30), st.booleans())
def test_it_never_gets_stuck_and_never_exceeds_the_memory(case: Case, room: int, split: bool) -> None:
    placement, prices = case
    if not trainable(placement):
        return
    capped = replace(prices, capacity=tuple(f + room for f in prices.fixed_bytes))
    try:
        schedule = branch_aware(placement, capped, split_backward=split)
    except PlanError as error:
        assert "needs" in str(error)  # noqa: PT017 (which error is the point)
        _one_at_a_time_exceeds(placement, capped)
        return
    timeline = simulated(schedule, placement, capped)
    assert all(p <= c for p, c in zip(timeline.peak_bytes, capped.capacity, strict=True))


def _one_at_a_time_exceeds(placement: Placement, prices: Prices) -> None:
    """What is refused would not fit one micro-batch at a time either (stages of batch scope hold all anyway)."""
    timeline = simulated(sequential(placement), placement, prices)
    assert any(p > c for p, c in zip(timeline.peak_bytes, prices.capacity, strict=True))

"""The simulator's semantics, case by case."""

from dataclasses import replace
from math import inf

import pytest

from plait.errors import PlanError
from plait.schedule.action import Schedule
from plait.schedule.layouts import chain, opposed, recomputing
from plait.schedule.lower import lower
from plait.schedule.placement import Placement, Reduction
from plait.schedule.published import forward_only, gpipe
from plait.simulate.memory import check_memory
from plait.simulate.prices import LinkPrice, Prices, StagePrice, uniform
from plait.simulate.simulate import simulate
from plait.simulate.timeline import Lane, Timeline

PRICE = StagePrice(forward=1.0, input_gradient=1.0, weight_gradient=1.0, held_bytes=8.0, kept_bytes=2.0)


def spans(timeline: Timeline, lane: Lane) -> dict[str, tuple[float, float]]:
    return {f"{e.rank} {e.label}": (e.start, e.end) for e in timeline.events() if e.lane is lane}


def test_messages_hold_their_pair_in_turn_and_arrive_a_latency_later() -> None:
    placement = chain(2, 3)
    programs = lower(forward_only(placement), placement)
    timeline = simulate(programs, uniform(placement, PRICE, LinkPrice(latency=0.25, bandwidth=0.5)))
    assert spans(timeline, Lane.SEND) == {
        "0 0>1:F0": (1.0, 3.25),
        "0 0>1:F1": (2.0, 5.25),
        "0 0>1:F2": (3.0, 7.25),
    }
    assert spans(timeline, Lane.WAIT) == {
        "1 0>1:F0": (0.0, 3.25),
        "1 0>1:F1": (4.25, 5.25),
        "1 0>1:F2": (6.25, 7.25),
    }
    assert timeline.step_time == 8.25
    assert timeline.busy.tolist() == [3.0, 3.0]


def test_who_has_the_message_already_does_not_wait() -> None:
    placement = chain(2, 2)
    slow = uniform(placement, PRICE, overrides=[(1, PRICE.times(4))])
    timeline = simulate(lower(forward_only(placement), placement), slow)
    assert spans(timeline, Lane.WAIT) == {"1 0>1:F0": (0.0, 1.0)}


def _reduced(seconds: float) -> tuple[Placement, Prices]:
    tied = Reduction(("tied",), (0, 1), ((0,), (1,)), 4.0)
    placement = replace(chain(2, 1), reductions=(tied,))
    return placement, replace(uniform(placement, PRICE), reductions=(seconds,), step=(0.5, 1.0))


def test_a_reduction_begins_when_all_have_begun_it_and_the_step_when_all_is_done() -> None:
    placement, prices = _reduced(3.0)
    timeline = simulate(lower(gpipe(placement), placement), prices)
    # 0F0 1, 1F0 2, 1B0 4, 0B0 6; then the sum until 9.
    assert spans(timeline, Lane.REDUCE) == {"0 reduce 0": (6.0, 9.0), "1 reduce 0": (6.0, 9.0)}
    assert spans(timeline, Lane.WAIT) == {
        "0 1>0:B0": (1.0, 4.0),
        "1 0>1:F0": (0.0, 1.0),
        "0 STEP": (6.0, 9.0),
        "1 STEP": (4.0, 9.0),
    }
    steps = {k: v for k, v in spans(timeline, Lane.COMPUTE).items() if "STEP" in k}
    assert steps == {"0 STEP": (9.0, 9.5), "1 STEP": (9.0, 10.0)}
    assert timeline.step_time == 10.0


def test_activations_are_held_from_forward_to_the_end_of_the_backward() -> None:
    placement = chain(1, 2)
    prices = replace(uniform(placement, PRICE), fixed_bytes=(100.0,))
    timeline = simulate(lower(Schedule.from_text("mine", ["0F0 0F1 0I0 0B1 0W0 STEP"]), placement), prices)
    held = list(zip(timeline.memory_time.tolist(), timeline.memory_bytes.tolist(), strict=True))
    assert held == [(0, 100), (0, 108), (1, 116), (5, 108), (6, 100)]


def test_recomputing_holds_inputs_until_it_runs_again() -> None:
    placement = recomputing(chain(1, 2), [0])
    timeline = simulate(lower(gpipe(placement), placement), uniform(placement, PRICE))
    held = list(zip(timeline.memory_time.tolist(), timeline.memory_bytes.tolist(), strict=True))
    assert held == [(0, 0), (0, 2), (1, 4), (2, 10), (5, 2), (5, 8), (8, 0)]


def test_a_forward_that_nothing_comes_back_to_holds_nothing() -> None:
    placement = replace(chain(2, 1), stages=(replace(chain(2, 1).stages[0], backward=False), chain(2, 1).stages[1]))
    timeline = simulate(lower(gpipe(placement), placement), uniform(placement, PRICE))
    assert timeline.peak_bytes.tolist() == [0.0, 8.0]


def test_names_and_batch_wide_actions_are_told() -> None:
    placement = opposed(2, 2, batch_scope=True)
    timeline = simulate(lower(gpipe(placement), placement), uniform(placement, PRICE), ("a/0/0", "b/0/0"))
    assert timeline.ranks == ("a/0/0", "b/0/0")
    assert timeline.stages[4] == "loss"
    begin, end = spans(timeline, Lane.COMPUTE)["1 4F*"]
    assert end - begin == 2.0


def test_a_missing_price_is_named() -> None:
    placement = chain(2, 2)
    prices = uniform(placement, PRICE)
    programs = lower(gpipe(placement), placement)
    with pytest.raises(PlanError, match=r"no price of stage model\.1 on rank 1 for 1 samples"):
        simulate(programs, replace(prices, stages={k: v for k, v in prices.stages.items() if k[0] == 0}))
    with pytest.raises(PlanError, match="no price of the link from rank 0 to rank 1"):
        simulate(programs, replace(prices, links={}))


def test_a_deadlock_is_refused() -> None:
    placement = chain(2, 2)
    schedule = Schedule.from_text("mine", ["0F0 0B0 0F1 0B1 STEP", "1F0 1F1 1B0 1B1 STEP"])
    with pytest.raises(PlanError, match="rank 0 waits forever for 1>0:B0"):
        simulate(lower(schedule, placement), uniform(placement, PRICE))


GIB = 2.0**30


def _memory(capacity: float, kept: float, fixed: float = 0.0) -> str:
    placement = chain(2, 4)
    price = StagePrice(1.0, 1.0, 1.0, held_bytes=GIB, kept_bytes=kept)
    prices = replace(uniform(placement, price, capacity=capacity), fixed_bytes=(0.0, fixed))
    timeline = simulate(lower(gpipe(placement), placement), prices)
    with pytest.raises(PlanError) as caught:
        check_memory(timeline, prices, ("paris/p0/0", "paris/p0/1"))
    return str(caught.value)


def test_too_small_a_device_is_named_with_what_fills_it_and_what_would_help() -> None:
    assert _memory(3 * GIB, kept=0.25 * GIB, fixed=0.5 * GIB) == (
        "rank 1 (paris/p0/1) needs 4.5 GiB at 1F3, it has 3 GiB; stage model.1 holds 4 GiB of activations; "
        "recompute would fit (2.25 GiB)"
    )
    assert "even with recompute it needs 4 GiB: use smaller micro-batches" in _memory(3 * GIB, kept=GIB)
    assert _memory(3 * GIB, kept=0.0, fixed=5 * GIB).endswith(
        "it has 3 GiB; weights, gradients and optimizer state alone take 5 GiB: give it fewer layers"
    )


def test_who_recomputes_already_is_told_so() -> None:
    placement = recomputing(chain(1, 4), [0])
    prices = uniform(placement, StagePrice(1.0, 1.0, 1.0, 2 * GIB, GIB), capacity=GIB)
    with pytest.raises(PlanError, match=r"needs 5 GiB at 0R3, it has 1 GiB; .* it recomputes already"):
        check_memory(simulate(lower(gpipe(placement), placement), prices), prices)


def test_what_fits_passes() -> None:
    placement = chain(2, 4)
    prices = uniform(placement, PRICE, capacity=32.0)
    check_memory(simulate(lower(gpipe(placement), placement), prices), prices)
    check_memory(simulate(lower(gpipe(placement), placement), prices), replace(prices, capacity=(inf, inf)))

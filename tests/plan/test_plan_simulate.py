"""A plan file is checked before anything is launched."""

from collections.abc import Callable
from typing import Any

import pytest

from plait.errors import PlanError
from plait.model.graph import Scope
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.schedules import NAMES, schedule_of
from plait.plan.simulate import check, predict, simulate
from support.report_case import make_case

Make = Callable[..., Any]


@pytest.fixture
def make_plan(two_towers: Make, make_cluster: Make, unit_costs: Make) -> Callable[..., Plan]:
    """Plans of a tower of four layers on two ranks, two micro-batches."""

    def make(schedule: SchedulePlan, *, memory: float = 2.0**30, priced: bool = True) -> Plan:
        graph = two_towers({"image": 4}, Scope.MICROBATCH)
        cluster = make_cluster([1.0, 1.0], memory=memory)
        stages = [
            StageChoice("image.0-1", ("image.0", "image.1"), ((0, "all"),)),
            StageChoice("image.2-3", ("image.2", "image.3"), ((1, "all"),)),
            StageChoice("loss", ("loss",), ((1, "all"),)),
        ]
        costs = unit_costs() if priced else None
        return assemble(graph, cluster, list(cluster.by_name), stages, [2, 2], schedule, costs=costs)

    return make


@pytest.mark.parametrize("name", [n for n in NAMES if n != "chimera"])
def test_a_named_schedule_runs_and_is_predicted(make_plan: Callable[..., Plan], name: str) -> None:
    plan = make_plan(SchedulePlan(name=name))
    programs = check(plan)
    timeline = simulate(plan)
    assert timeline.ranks == plan.devices
    assert timeline.stages == ("image.0-1", "image.2-3", "loss")
    prediction = predict(plan)
    assert prediction.step_time == timeline.step_time
    # Two layers, forward and twice backward, of two micro-batches of two samples, at 1 ms a sample.
    assert prediction.step_time > 2 * 2 * 2 * 3e-3
    assert len(programs.ranks) == 2


def test_an_unknown_name_is_refused_with_the_known_ones(make_plan: Callable[..., Plan]) -> None:
    with pytest.raises(PlanError, match=r"schedule.name: 'pipe' is not known; it can be gpipe, 1f1b, chimera"):
        check(make_plan(SchedulePlan(name="pipe")))


def test_an_explicit_order_is_taken_as_it_stands(make_plan: Callable[..., Plan]) -> None:
    order = ("0F1 0F0 0B0 0B1 STEP", "1F1 2F1 1F0 2F0 2B0 1B0 2B1 1B1 STEP")
    plan = Plan.parse(make_plan(SchedulePlan(name="mine", order=order)).dump())
    assert schedule_of(plan).to_text() == list(order)
    check(plan)


def test_an_order_that_deadlocks_is_refused_with_who_waits_for_whom(make_plan: Callable[..., Plan]) -> None:
    order = ("0F0 0B0 0F1 0B1 STEP", "1F0 2F0 1F1 2F1 2B1 1B1 2B0 1B0 STEP")
    plan = Plan.parse(make_plan(SchedulePlan(name="mine", order=order)).dump())
    with pytest.raises(PlanError, match=r"(?s)rank 0.*rank 1|rank 1.*rank 0"):
        check(plan)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("0F0 0F1 0B0 0B1 STEP",), "schedule.order: 1 rows for 2 ranks"),
        (("0F0 0Q1", "STEP"), "schedule.order: '0Q1' is not an action"),
        (("0F0 0B0 STEP", "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1 STEP"), "stage image.0-1, micro-batch 1"),
    ],
)
def test_a_wrong_order_is_refused(make_plan: Callable[..., Plan], order: tuple[str, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check(make_plan(SchedulePlan(name="mine", order=order)))


def test_a_device_too_small_is_named_with_the_stage_and_what_it_needs(make_plan: Callable[..., Plan]) -> None:
    # Two layers of 1 KiB: 8 KiB with gradients and Adam's state, and activations of 4 kB a micro-batch; then the loss.
    with pytest.raises(PlanError, match=r"rank 1 \(s0/n0/1\) needs 19.7 KiB .* it has 9.77 KiB; stage image.2-3 holds"):
        check(make_plan(SchedulePlan(name="gpipe"), memory=10_000))


def test_a_plan_without_prices_is_checked_but_not_simulated(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan(SchedulePlan(name="gpipe"), priced=False)
    check(plan)
    with pytest.raises(PlanError, match=r"stages.image.0-1.prices: none for rank 0 and 2 samples"):
        simulate(plan)


def test_a_plan_that_lacks_one_price_is_refused(make_plan: Callable[..., Plan]) -> None:
    plan = make_plan(SchedulePlan(name="gpipe"))
    stage = plan.stages[1].model_copy(update={"prices": ()})
    lacking = plan.model_copy(update={"stages": (plan.stages[0], stage, plan.stages[2])})
    with pytest.raises(PlanError, match=r"stages.image.2-3.prices: none for rank 1"):
        check(lacking)


@pytest.mark.parametrize("field", ["codec", "gradient_codec"])
def test_a_codec_that_is_not_built_is_refused(field: str) -> None:
    plan = make_case().plan
    transfers = (plan.transfers[0].model_copy(update={field: "bf16"}), *plan.transfers[1:])
    with pytest.raises(PlanError, match=rf"transfers\.0\.{field} .*'bf16' is not built yet"):
        check(plan.model_copy(update={"transfers": transfers}))

"""A plan edited by hand is refused where it lacks what its model needs."""

from typing import Any

import pytest

from plait.errors import PlanError
from plait.plan.matches import check_matches
from plait.plan.plan import Plan
from support.report_case import graph, make_case


def edited(**changes: Any) -> Plan:
    return make_case().plan.model_copy(update=changes)


def test_a_plan_as_the_planner_makes_it_matches() -> None:
    check_matches(make_case().plan, graph())


def test_a_missing_transfer_is_named() -> None:
    plan = make_case().plan
    with pytest.raises(PlanError, match=r"text\.3 → loss must carry text\.3; it carries nothing"):
        check_matches(edited(transfers=plan.transfers[:-1]), graph())


def test_a_transfer_without_its_gradient_is_named() -> None:
    plan = make_case().plan
    changed = plan.transfers[0].model_copy(update={"gradient": False})
    with pytest.raises(PlanError, match="gradient must be true"):
        check_matches(edited(transfers=(changed, *plan.transfers[1:])), graph())


def test_a_transfer_that_nobody_reads_is_named() -> None:
    plan = make_case().plan
    extra = plan.transfers[0].model_copy(update={"source": "vision.0", "target": "loss"})
    with pytest.raises(PlanError, match=r"vision\.0 → loss is not needed"):
        check_matches(edited(transfers=(*plan.transfers, extra)), graph())


@pytest.mark.parametrize(("field", "value"), [("backward", False), ("scope", "batch"), ("branch", "other")])
def test_a_stage_that_is_not_what_its_layers_make_it_is_named(field: str, value: Any) -> None:
    plan = make_case().plan
    changed = plan.stages[0].model_copy(update={field: value})
    with pytest.raises(PlanError, match=rf"stages\.vision\.0\.{field}: {str(value).lower()}, but its layers"):
        check_matches(edited(stages=(changed, *plan.stages[1:])), graph())


def test_a_layer_that_no_stage_holds_is_named() -> None:
    plan = make_case().plan
    with pytest.raises(PlanError, match=r"no stage holds 1 of 9 layers: vision\.0"):
        check_matches(edited(stages=plan.stages[1:]), graph())


def test_gradients_of_replicas_that_are_not_summed_are_named() -> None:
    plan = make_case().plan
    first = plan.stages[0]
    replicas = tuple(
        first.replicas[0].model_copy(update={"rank": rank, "micro_batches": given})
        for rank, given in ((0, (0, 1)), (2, (2, 3)))
    )
    stages = (first.model_copy(update={"replicas": replicas}), *plan.stages[1:])
    with pytest.raises(PlanError, match=r"gradients of vision\.0\.weight .* over the ranks \[0, 2\]"):
        check_matches(edited(stages=stages), graph())

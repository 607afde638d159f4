"""A model that export refuses, described by hand: everything after capture works as for any other model."""

import pytest
from torch import nn

from plait.errors import PlanError
from plait.model.capture import capture
from plait.plan.plan import Plan
from plait.runtime.parts import capture_for
from support import by_hand, gradients, partitions
from support.pool import Pool


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    model, batch = by_hand.pair()
    graph = capture(model, batch, branches=by_hand.branches()).graph
    return {way: partitions.plan_by(graph, 3, homes(graph, 3)) for way, homes in partitions.WAYS.items()}


def test_gradients_equal_the_unpartitioned_model_under_three_partitions(ranks: Pool, plans: dict[str, Plan]) -> None:
    expected = gradients.of_model(by_hand.pair)
    for way, plan in plans.items():
        found = gradients.run(ranks, by_hand.pair, plan, by_hand.branches)
        assert gradients.error(found, expected) <= 1, way


def test_a_rank_finds_the_same_graph_though_it_has_no_weights(plans: dict[str, Plan]) -> None:
    model, batch = by_hand.pair()
    graph = capture(model, batch, branches=by_hand.branches()).graph
    found = capture_for(model.to("meta"), plans["opposed"], None, by_hand.branches()).graph
    assert found.fingerprint == graph.fingerprint
    assert found.losses == graph.losses
    assert [x.parameters for x in found.layers] == [x.parameters for x in graph.layers]


def test_a_plan_goes_with_the_description_that_it_was_made_for(plans: dict[str, Plan]) -> None:
    model, _ = by_hand.pair()
    with pytest.raises(PlanError, match=r"Pair described by hand; give its plait\.Branches"):
        capture_for(model, plans["opposed"], None)
    with pytest.raises(PlanError, match="another"):
        capture_for(nn.ModuleDict({"vision": model.vision}), plans["opposed"], None, by_hand.branches())

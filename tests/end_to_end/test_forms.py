"""Batches of other forms than planned: fewer samples, other lengths, other tasks. The same result as in one process."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from torch import Tensor

from plait.errors import PlanError
from plait.model.capture import capture
from plait.model.graph import BranchGraph
from plait.plan.homes import plan_alongside
from plait.plan.plan import Plan
from plait.plan.tasks import check_tasks
from support import models, partitions, tasks
from support.plans import UnitCosts
from support.pool import Pool, RankError


@cache
def gpt2() -> BranchGraph:
    return capture(*models.gpt2()).graph


@cache
def graphs() -> dict[str, BranchGraph]:
    model, batches = tasks.alternating()
    return {name: capture(model, batch).graph for name, batch in batches.items()}


def gpt2_plan(way: str) -> Plan:
    return partitions.plan_by(gpt2(), 3, partitions.WAYS[way](gpt2(), 3))


def assert_equal(results: list[Any], expected: tuple[list[float], Mapping[str, Tensor]]) -> None:
    for losses, parameters in results:
        assert losses == pytest.approx(expected[0], rel=1e-5)
        for name, found in parameters.items():
            reference = expected[1][name]
            assert float((found - reference).abs().max()) <= 1e-5 * float(reference.abs().max()) + 1e-8, name


@pytest.mark.parametrize("way", partitions.WAYS)
def test_the_last_short_batch_of_an_epoch_is_trained_on(ranks: Pool, way: str) -> None:
    sizes = [8, 5, 3, 1]
    found = ranks.run(3, tasks.of_lengths, gpt2_plan(way).dump(), [8] * 4, {}, sizes)
    assert_equal(found, tasks.of_lengths_alone([8] * 4, sizes))


@pytest.mark.parametrize("options", [{}, {"multiple_of": 1}], ids=["as they come", "as they come, said so"])
def test_samples_of_any_length_are_trained_on_as_they_are(ranks: Pool, options: dict[str, Any]) -> None:
    lengths = [8, 5, 6, 5]
    found = ranks.run(3, tasks.of_lengths, gpt2_plan("scattered").dump(), lengths, options)
    assert_equal(found, tasks.of_lengths_alone(lengths))


@pytest.mark.parametrize("multiple", [None, 4], ids=["to the planned length", "to a multiple"])
def test_samples_are_filled_up_as_the_user_chose(ranks: Pool, multiple: int | None) -> None:
    lengths = [8, 5, 3, 4]
    options = {"pad": {"input_ids": 0, "labels": -100}, "multiple_of": multiple}
    found = ranks.run(3, tasks.of_lengths, gpt2_plan("opposed").dump(), lengths, options)
    assert_equal(found, tasks.of_lengths_alone(lengths))


def test_samples_that_are_too_long_are_refused(ranks: Pool) -> None:
    plan = capture(models.gpt2()[0], tasks.texts([4])[0]).graph
    short = partitions.plan_by(plan, 2, partitions.pipeline(plan, 2))
    with pytest.raises(RankError, match="input_ids is 8 long, planned is 4; cut it, plan for the longest, or give"):
        ranks.run(2, tasks.of_lengths, short.dump(), [8], {"pad": {"input_ids": 0, "labels": -100}})


def plans_for_tasks(way: str, first: str) -> dict[str, Plan]:
    second = next(name for name in graphs() if name != first)
    plan = partitions.plan_by(graphs()[first], 3, partitions.WAYS[way](graphs()[first], 3))
    return {first: plan, second: plan_alongside(graphs()[second], [(plan, graphs()[first])], UnitCosts())}


@pytest.mark.parametrize("first", ["image", "text"])
@pytest.mark.parametrize("way", partitions.WAYS)
def test_tasks_take_turns_as_in_one_process(ranks: Pool, way: str, first: str) -> None:
    plans = {name: plan.dump() for name, plan in plans_for_tasks(way, first).items()}
    assert_equal(ranks.run(3, tasks.take_turns, plans), tasks.take_turns_alone())


def test_tasks_that_hold_shared_weights_apart_step_them_alike(ranks: Pool) -> None:
    plans = {
        name: partitions.plan_by(graph, 3, partitions.scattered(graph, 3, seed)).dump()
        for seed, (name, graph) in enumerate(graphs().items())
    }
    assert_equal(ranks.run(3, tasks.take_turns, plans), tasks.take_turns_alone())


def test_another_task_keeps_shared_layers_where_they_are() -> None:
    plans = plans_for_tasks("opposed", "image")
    homes = {
        name: {x: s.replicas for s in plan.stages for x in s.layers if x.startswith("trunk")}
        for name, plan in plans.items()
    }
    assert homes["image"] == homes["text"]
    assert homes["image"]


def test_tasks_must_differ_in_their_inputs() -> None:
    plan = gpt2_plan("pipeline")
    with pytest.raises(PlanError, match="tasks a and b: both have the inputs input_ids, labels"):
        check_tasks({"a": plan, "b": plan})

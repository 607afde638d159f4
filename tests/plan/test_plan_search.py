"""The planner's plans run, fit, use what is there, and are no worse than what one would write by hand."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from plait.cost.costs import Source
from plait.cost.roofline import RooflineCosts
from plait.errors import CostError, PlanError
from plait.model.graph import BranchGraph, Layer, Loss, Parameter, Scope, TensorSpec
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.search import plan
from plait.plan.simulate import check, predict, quick_merit, simulate

Make = Callable[..., Any]


def _by_hand(graph: BranchGraph, cluster: Any, costs: Any, sizes: list[int]) -> Plan:
    """Both towers cut into equal parts, laid in opposite directions, loss on the last rank."""
    ranks = len(cluster.devices)
    stages = []
    for branch, layers in list(graph.branches.items())[:2]:
        each = len(layers) // ranks
        for i in range(ranks):
            names = tuple(x.name for x in layers[i * each : (i + 1) * each if i < ranks - 1 else None])
            rank = i if branch == "image" else ranks - 1 - i
            stages.append(StageChoice(f"{branch}.{i}", names, ((rank, "all"),)))
    stages.append(StageChoice("loss", ("loss",), ((ranks - 1, "all"),)))
    made = assemble(graph, cluster, list(cluster.by_name), stages, sizes, SchedulePlan(name="gpipe"), costs=costs)
    return made.model_copy(update={"predicted": predict(made)})


@pytest.mark.parametrize("scope", [Scope.BATCH, Scope.MICROBATCH])
def test_a_plan_for_unequal_devices_beats_equal_cuts_and_passes_every_check(
    two_towers: Make, make_cluster: Make, unit_costs: Make, scope: Scope
) -> None:
    graph, cluster = two_towers({"image": 8, "text": 8}, scope), make_cluster([1.0, 1.0, 0.25, 0.25], sites=2)
    costs = unit_costs(seconds=1e-3)
    found = plan(graph, cluster, costs, global_batch=32)
    check(found)
    assert Plan.parse(found.dump()) == found
    assert found.predicted
    hand = _by_hand(graph, cluster, costs, [4] * 8)
    assert hand.predicted
    assert found.predicted.step_time < hand.predicted.step_time
    assert found.predicted.step_time == pytest.approx(simulate(found).step_time)
    assert quick_merit(found)[1] == pytest.approx(simulate(found).step_time)
    assert found.predicted.samples_per_second == pytest.approx(32 / found.predicted.step_time)
    assert sum(found.predicted.sources.values()) == pytest.approx(1)
    assert set(found.predicted.sources) == {Source.SCALED}
    # Nothing can be quicker than all devices busy all the time: 16 layers, forward and backward, and the loss.
    least = 32 * 3e-3 * 16 / sum(d.speed for d in cluster.devices)
    assert found.predicted.step_time > least * 0.99
    assert found.predicted.step_time < least * 1.6


def test_equal_devices_on_fast_links_are_kept_almost_always_busy(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph, cluster = two_towers({"image": 8, "text": 8}), make_cluster([1.0] * 4)
    found = plan(graph, cluster, unit_costs(), global_batch=64)
    assert found.predicted
    assert found.predicted.bubble_ratio < 0.1
    assert len(found.devices) == 4


def test_a_slow_link_keeps_the_plan_in_one_site_unless_every_device_is_asked_for(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph = two_towers({"image": 4, "text": 4})
    cluster = make_cluster([1.0, 1.0, 0.1, 0.1], sites=2, mbit=0.1)
    costs = unit_costs(seconds=1e-4)
    near = plan(graph, cluster, costs, global_batch=16)
    assert {cluster.by_name[d].site for d in near.devices} == {"s0"}
    far = plan(graph, cluster, costs, global_batch=16, every_device=True)
    assert sorted(far.devices) == sorted(cluster.by_name)
    assert near.predicted
    assert far.predicted
    assert near.predicted.step_time < far.predicted.step_time
    assert quick_merit(far)[1] == pytest.approx(far.predicted.step_time)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "chimera", "branch_aware", "branch-aware", "sequential"])
def test_the_schedule_asked_for_is_used(two_towers: Make, make_cluster: Make, unit_costs: Make, schedule: str) -> None:
    graph, cluster = two_towers({"image": 4, "text": 4}, Scope.MICROBATCH), make_cluster([1.0, 1.0])
    found = plan(graph, cluster, unit_costs(), global_batch=8, micro_batch=2, schedule=schedule, every_device=True)
    assert found.schedule.name == schedule
    assert found.micro_batches == (2, 2, 2, 2)
    check(found)


def test_micro_batches_of_a_given_size_leave_a_smaller_last_one(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph, cluster = two_towers({"image": 4}, Scope.MICROBATCH), make_cluster([1.0, 0.5])
    found = plan(graph, cluster, unit_costs(), global_batch=10, micro_batch=4)
    assert found.micro_batches == (4, 4, 2)


def test_little_memory_makes_it_recompute_and_only_where_needed(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph = two_towers({"image": 4, "text": 4})
    costs = unit_costs(held=1e5)  # all held: 8 layers x 32 samples x 100 kB = 25.6 MB over two devices
    ample = plan(graph, make_cluster([1.0, 1.0], memory=2e7), costs, global_batch=32)
    assert not any(s.recompute for s in ample.stages)
    tight = plan(graph, make_cluster([1.0, 1.0], memory=9e6), costs, global_batch=32)
    assert any(s.recompute for s in tight.stages)
    assert tight.predicted
    assert ample.predicted
    assert max(tight.predicted.peak_memory) <= 9e6
    assert tight.predicted.step_time > ample.predicted.step_time


def test_where_nothing_fits_it_says_which_stage_lacks_how_much_on_which_device(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph, cluster = two_towers({"image": 4, "text": 4}), make_cluster([1.0, 1.0], memory=12_000)
    with pytest.raises(PlanError) as refused:
        plan(graph, cluster, unit_costs(held=1.0), global_batch=8)
    text = str(refused.value)
    assert "weights, gradients and optimizer state take 32 KiB, the 2 devices have 23.4 KiB" in text
    assert re.search(r"rank \d \(s0/n0/\d\) needs 16.* KiB, it has 11.7 KiB", text)
    assert re.search(r"That device \(d\d\) would hold (image|text)\S* \(\S+ to \S+\)", text)
    assert re.search(r"It would fit with 1.4\d times the memory", text)


def test_a_weak_device_gets_what_fits_it(two_towers: Make, make_cluster: Make, unit_costs: Make) -> None:
    graph = two_towers({"image": 6, "text": 6}, Scope.MICROBATCH)
    cluster = make_cluster([1.0, 1.0]).model_dump()
    cluster["device_types"]["d1"]["memory"] = 20_000.0  # four layers of 4 KiB each, at most
    small = type(make_cluster([1.0])).model_validate(cluster)
    found = plan(graph, small, unit_costs(held=1.0), global_batch=8, every_device=True)
    rank = found.devices.index("s0/n0/1")
    assert sum(s.parameter_bytes for s in found.stages if s.replicas[0].rank == rank) <= 5 * 1024
    check(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 0}, "global_batch: 0 must be at least 1"),
        ({"micro_batch": 9}, "micro_batch: 9 must be between 1 and the global batch, 8"),
        ({"micro_batch": 0}, "micro_batch: 0 must be between"),
        ({"schedule": "gpip"}, "'gpip' is not known; it can be gpipe, 1f1b, chimera, sequential, branch_aware"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(
    two_towers: Make, make_cluster: Make, unit_costs: Make, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        plan(two_towers({"image": 2}), make_cluster([1.0]), unit_costs(), **({"global_batch": 8} | arguments))


def test_a_schedule_that_suits_no_layout_is_refused_with_its_reason(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    with pytest.raises(PlanError, match=r"schedule chimera suits no layout of these 3 devices .* even number"):
        plan(
            two_towers({"image": 3}),
            make_cluster([1.0] * 3),
            unit_costs(),
            global_batch=8,
            schedule="chimera",
            every_device=True,
        )


def test_a_device_without_prices_is_refused(two_towers: Make, make_cluster: Make) -> None:
    graph = two_towers({"image": 2})
    with pytest.raises(CostError, match="no fp32 rate is known for unit"):
        plan(graph, make_cluster([1.0]), RooflineCosts(graph), global_batch=8)


def test_branches_that_feed_each_other_are_cut_where_they_meet(make_cluster: Make, unit_costs: Make) -> None:
    """Two towers with cross-attention in both directions after every second layer."""
    spec = TensorSpec(shape=(1, 8), dtype="float32", gradient=True)
    layers = []
    for i in range(6):
        for branch, other in (("a", "b"), ("b", "a")):
            reads = [f"{branch}{i - 1}"] if i else []
            reads += [f"{other}{i - 1}"] if i in (2, 4) else []
            weight = Parameter(name=f"{branch}{i}.w", shape=(8, 8), dtype="float32")
            layers.append(
                Layer(
                    name=f"{branch}.{i}",
                    branch=branch,
                    inputs=() if i else ("x",),
                    reads=tuple(reads),
                    writes=(f"{branch}{i}",),
                    parameters=(weight,),
                )
            )
    layers.append(Layer(name="loss", branch="join", reads=("a5", "b5"), writes=("loss",)))
    values = {v: spec for layer in layers for v in layer.writes}
    losses = (Loss(value="loss", scope=Scope.MICROBATCH),)
    graph = BranchGraph(model="Co", inputs={"x": spec}, values=values, layers=tuple(layers), losses=losses)
    found = plan(graph, make_cluster([1.0, 1.0]), unit_costs(), global_batch=16)
    check(found)
    held = {s.name: s.layers for s in found.stages}
    assert not any({f"{b}.1", f"{b}.2"} <= set(names) for names in held.values() for b in "ab")
    assert found.predicted
    assert found.predicted.bubble_ratio < 0.4


def test_smaller_micro_batches_are_proposed_where_they_would_fit(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph = two_towers({"image": 4, "text": 4}, Scope.MICROBATCH)
    # Sixteen samples at once: a layer holds 1.6 MB, and a device must hold at least one stage's.
    cluster = make_cluster([1.0, 1.0], memory=3e6)
    with pytest.raises(PlanError, match=r"with micro_batch: [1248] it fits as it is"):
        plan(graph, cluster, unit_costs(held=1e5), global_batch=16, micro_batch=16)
    check(plan(graph, cluster, unit_costs(held=1e5), global_batch=16))


def _with_layers(graph: BranchGraph, layers: tuple[Layer, ...]) -> BranchGraph:
    return BranchGraph(**{**{name: getattr(graph, name) for name in BranchGraph.model_fields}, "layers": layers})


def _shared(graph: BranchGraph, one: str, other: str, rows: int) -> BranchGraph:
    """The graph with a weight of ``rows`` rows that two of its layers share."""
    weight = Parameter(name="shared", shape=(rows, 16), dtype="float32")
    layers = tuple(
        x.model_copy(update={"parameters": (*x.parameters, weight)}) if x.name in (one, other) else x
        for x in graph.layers
    )
    return _with_layers(graph, layers)


def _heavy(graph: BranchGraph, rows: int) -> BranchGraph:
    """The graph with large weights of its layers' own, whose gradients data parallelism would have to sum."""
    layers = tuple(
        x.model_copy(update={"parameters": (Parameter(name=f"{x.name}.own", shape=(rows, 16), dtype="float32"),)})
        if x.parameters
        else x
        for x in graph.layers
    )
    return _with_layers(graph, layers)


def _rank(found: Plan, layer: str) -> int:
    (rank,) = (r.rank for stage in found.stages if layer in stage.layers for r in stage.replicas)
    return rank


def _plan(graph: BranchGraph, cluster: Any, costs: Any) -> Plan:
    return plan(graph, cluster, costs, global_batch=32, micro_batch=1, schedule="branch_aware")


def test_a_heads_and_an_embeddings_large_weight_are_put_together(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph, cluster = _heavy(two_towers({"text": 8}), rows=20_000), make_cluster([1.0, 1.0], sites=2, mbit=100.0)
    apart = _plan(graph, cluster, unit_costs(seconds=1e-2))
    assert _rank(apart, "text.0") != _rank(apart, "text.7")
    found = _plan(_shared(graph, "text.0", "text.7", rows=20_000), cluster, unit_costs(seconds=1e-2))
    assert len(found.devices) == 2
    assert _rank(found, "text.0") == _rank(found, "text.7")
    assert not found.reductions
    assert found.predicted
    assert apart.predicted
    assert found.predicted.step_time < apart.predicted.step_time + 0.09  # the sum alone would take 0.1 s


def test_gradients_of_a_shared_weight_are_summed_where_that_costs_less(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph, cluster = two_towers({"image": 6, "text": 6}), make_cluster([1.0, 1.0], sites=2, mbit=100.0)
    found = _plan(_shared(graph, "image.2", "text.2", rows=4), cluster, unit_costs(seconds=1e-2))
    assert _rank(found, "image.2") != _rank(found, "text.2")
    assert [r.parameters for r in found.reductions] == [("shared",)]

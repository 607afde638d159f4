"""Everything of a plan that follows from the choices."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.cost.links import all_reduce_seconds
from plait.errors import PlanError
from plait.model.graph import BranchGraph, Layer, Loss, Parameter, Scope, TensorSpec
from plait.plan.assemble import StageChoice, assemble
from plait.plan.compile import placement_of, prices_of
from plait.plan.plan import Plan, SchedulePlan

Make = Callable[..., Any]
GPIPE = SchedulePlan(name="gpipe")
SPEC = TensorSpec(shape=(1, 4), dtype="float32", gradient=True)


def _choices(graph: BranchGraph, cuts: dict[str, list[int]], ranks: int) -> list[StageChoice]:
    stages = []
    for branch, layers in graph.branches.items():
        edges = [0, *cuts.get(branch, []), len(layers)]
        for index, (a, b) in enumerate(pairwise(edges)):
            names = tuple(layer.name for layer in layers[a:b])
            stages.append(StageChoice(f"{branch}.s{index}", names, ((index % ranks, "all"),)))
    return stages


@st.composite
def _cut_towers(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, list[int]]]:
    depths = {b: draw(st.integers(1, 6)) for b in ("image", "text", "sound")[: draw(st.integers(1, 3))]}
    cuts = {b: sorted(draw(st.sets(st.integers(1, d - 1), max_size=3)) if d > 1 else set()) for b, d in depths.items()}
    return depths, cuts


@settings(max_examples=30, deadline=None)
@given(_cut_towers(), st.randoms(use_true_random=False), st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_any_cut_gives_a_plan_whose_transfers_carry_what_crosses_stages(
    two_towers: Make, make_cluster: Make, unit_costs: Make, towers: Any, random: Any, sizes: list[int]
) -> None:
    graph = two_towers(towers[0])
    stages = _choices(graph, towers[1], 3)
    random.shuffle(stages)
    cluster = make_cluster([1.0, 2.0, 0.5])
    plan = assemble(graph, cluster, list(cluster.by_name), stages, sizes, GPIPE, costs=unit_costs())
    home = {name: s.name for s in plan.stages for name in s.layers}
    crossing = {
        (home[graph.producers[v]], home[layer.name], v)
        for layer in graph.layers
        for v in layer.reads
        if home[graph.producers[v]] != home[layer.name]
    }
    assert {(t.source, t.target, v) for t in plan.transfers for v in t.values} == crossing
    assert all(plan.stage_index[t.source] < plan.stage_index[t.target] for t in plan.transfers)
    assert sorted(home) == sorted(graph.by_name)
    assert len({(t.source, t.target) for t in plan.transfers}) == len(plan.transfers)
    prices_of(plan)  # refuses a plan that lacks a price
    assert Plan.parse(plan.dump()) == plan


def test_a_transfer_counts_bytes_per_sample_and_fixed_and_the_gradients_that_return(make_cluster: Make) -> None:
    values = {
        "a": SPEC,
        "mask": TensorSpec(shape=(1, 3), dtype="bool"),
        "table": TensorSpec(shape=(7,), dtype="float64", batch_dim=None, gradient=True),
        "out": TensorSpec(shape=(), dtype="float32", batch_dim=None, gradient=True),
    }
    weight = Parameter(name="w", shape=(4,), dtype="float32")
    graph = BranchGraph(
        model="M",
        inputs={"x": SPEC},
        values=values,
        layers=(
            Layer(name="one", branch="b", inputs=("x",), writes=("a", "mask", "table"), parameters=(weight,)),
            Layer(name="two", branch="b", reads=("a", "mask", "table"), writes=("out",)),
        ),
        losses=(Loss(value="out", scope=Scope.MICROBATCH),),
    )
    cluster = make_cluster([1.0, 1.0])
    stages = [StageChoice("B", ("two",), ((1, "all"),)), StageChoice("A", ("one",), ((0, "all"),))]
    plan = assemble(graph, cluster, list(cluster.by_name), stages, [2, 2], GPIPE)
    (transfer,) = plan.transfers
    assert (transfer.bytes_per_sample, transfer.bytes_fixed) == (16 + 3, 56)
    assert (transfer.gradient_bytes_per_sample, transfer.gradient_bytes_fixed) == (16, 56)
    assert [s.name for s in plan.stages] == ["A", "B"]
    assert plan.stages[0].parameter_bytes == plan.stages[0].gradient_bytes == 16
    assert plan.stages[0].optimizer_bytes == 32


def _chain(*trainable: bool, gradient: tuple[bool, ...], tied: str = "") -> BranchGraph:
    values = {f"v{i}": SPEC.model_copy(update={"gradient": g}) for i, g in enumerate(gradient)}
    layers = tuple(
        Layer(
            name=f"l{i}",
            branch="b",
            inputs=("x",) if i == 0 else (),
            reads=(f"v{i - 1}",) if i else (),
            writes=(f"v{i}",),
            parameters=(Parameter(name=tied or f"w{i}", shape=(4,), dtype="float32", trainable=t),),
        )
        for i, t in enumerate(trainable)
    )
    end = f"v{len(trainable) - 1}"
    losses = (Loss(value=end, scope=Scope.MICROBATCH),)
    return BranchGraph(model="M", inputs={"x": SPEC}, values=values, layers=layers, losses=losses)


def _one_each(graph: BranchGraph, ranks: list[int]) -> list[StageChoice]:
    return [StageChoice(x.name, (x.name,), ((r, "all"),)) for x, r in zip(graph.layers, ranks, strict=True)]


def test_a_frozen_root_has_no_backward_but_a_frozen_layer_above_a_trained_one_has(make_cluster: Make) -> None:
    graph = _chain(False, True, False, gradient=(False, True, True))
    cluster = make_cluster([1.0] * 3)
    plan = assemble(graph, cluster, list(cluster.by_name), _one_each(graph, [0, 1, 2]), [1], GPIPE)
    assert [s.backward for s in plan.stages] == [False, True, True]
    assert [t.gradient for t in plan.transfers] == [False, True]
    assert plan.stages[0].gradient_bytes == plan.stages[2].optimizer_bytes == 0


def test_a_stage_that_no_loss_reads_has_no_backward(make_cluster: Make) -> None:
    graph = _chain(True, True, True, gradient=(True, True, False))
    graph = graph.model_copy(update={"losses": (Loss(value="v1", scope=Scope.MICROBATCH),), "outputs": {"m": "v2"}})
    cluster = make_cluster([1.0] * 3)
    plan = assemble(graph, cluster, list(cluster.by_name), _one_each(graph, [0, 1, 2]), [1], GPIPE)
    assert [s.backward for s in plan.stages] == [True, True, False]
    assert [t.gradient for t in plan.transfers] == [True, False]


def test_tied_weights_are_reduced_over_their_ranks_and_counted_once_on_one_rank(make_cluster: Make) -> None:
    graph = _chain(True, True, True, gradient=(True, True, True), tied="w")
    cluster = make_cluster([1.0] * 3, sites=3)
    apart = assemble(graph, cluster, list(cluster.by_name), _one_each(graph, [0, 2, 0]), [1], GPIPE)
    (reduction,) = apart.reductions
    assert (reduction.parameters, reduction.ranks, reduction.nbytes) == (("w",), (0, 2), 16)
    link = cluster.link(cluster.devices[0], cluster.devices[2])
    assert reduction.seconds == all_reduce_seconds(link, 2, 16) == pytest.approx(2 * (1e-3 + 8 / 25e6))
    assert [s.parameter_bytes for s in apart.stages] == [16, 16, 0]
    together = assemble(graph, cluster, list(cluster.by_name), _one_each(graph, [1, 1, 1]), [1], GPIPE)
    assert together.reductions == ()


def test_data_parallel_replicas_group_their_reductions_by_rank_set(two_towers: Make, make_cluster: Make) -> None:
    graph = two_towers({"image": 2, "text": 2})
    cluster = make_cluster([1.0] * 4)
    halves = (((0, (0, 1)), (1, (2, 3))), ((2, (0, 2)), (3, (1, 3))))
    stages = [
        StageChoice("image", ("image.0", "image.1"), halves[0]),
        StageChoice("text", ("text.0", "text.1"), halves[1]),
        StageChoice("loss", ("loss",), ((0, "all"),)),
    ]
    plan = assemble(graph, cluster, list(cluster.by_name), stages, [4, 4, 2, 2], GPIPE)
    assert {r.ranks: r.parameters for r in plan.reductions} == {
        (0, 1): ("image.0.weight", "image.1.weight"),
        (2, 3): ("text.0.weight", "text.1.weight"),
    }
    assert placement_of(plan).stages[2].batch_scope


def test_prices_are_given_for_each_size_that_a_replica_runs(
    two_towers: Make, make_cluster: Make, unit_costs: Make
) -> None:
    graph = two_towers({"image": 3})
    cluster = make_cluster([1.0, 2.0])
    stages = [
        StageChoice("image", ("image.0", "image.1", "image.2"), ((0, (0,)), (1, (1, 2)))),
        StageChoice("loss", ("loss",), ((1, "all"),)),
    ]
    plan = assemble(graph, cluster, list(cluster.by_name), stages, [4, 4, 8], GPIPE, costs=unit_costs(seconds=1.0))
    found = {(s.name, p.rank, p.samples): p for s in plan.stages for p in s.prices}
    assert set(found) == {("image", 0, 4), ("image", 1, 4), ("image", 1, 8), ("loss", 1, 16)}
    assert found["image", 0, 4].forward == 12
    assert found["image", 1, 8].forward == 12
    assert found["image", 1, 8].kept == 8 * 64  # the data input
    assert found["loss", 1, 16].kept == 16 * 64
    assert plan.step_seconds == pytest.approx((3 * 1024e-9, 1.5 * 1024e-9))


def _swap(stages: list[StageChoice], index: int, **changes: Any) -> list[StageChoice]:
    old = stages[index]
    fields = {"name": old.name, "layers": old.layers, "replicas": old.replicas} | changes
    return [*stages[:index], StageChoice(**fields), *stages[index + 1 :]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s[1:], r"no stage holds 2 of 7 layers: image.0, image.1"),
        (lambda s: _swap(s, 0, layers=("image.0", "text.0")), "stage image.s0 mixes branches"),
        (lambda s: _swap(s, 0, layers=("image.0", "image.1", "image.2")), "image.2 is given twice: to stage image.s0"),
        (lambda s: _swap(s, 0, layers=("image.0", "picture.1")), "no layer 'picture.1'"),
        (lambda s: _swap(s, 0, replicas=((7, "all"),)), "rank 7 has no device; there are 2"),
        (lambda s: _swap(s, 0, replicas=((0, (0,)), (0, (1,)))), "rank 0 holds it twice"),
        (lambda s: _swap(s, 0, replicas=((0, (0, 5)),)), "no micro-batch 5; there are 2"),
        (lambda s: _swap(s, 0, replicas=((0, (0,)),)), r"run micro-batches \[0\]"),
        (lambda s: _swap(s, 0, replicas=((0, (0, 1)), (1, ()))), "runs no micro-batch"),
        (lambda s: _swap(s, 0, replicas=()), "no rank holds it"),
        (lambda s: _swap(s, 0, name="text.s0"), "text.s0 stands twice"),
        (
            lambda s: _swap(_swap(s, 0, layers=("image.0", "image.3")), 1, layers=("image.1", "image.2")),
            "cycle: image.s0 → image.s1 → image.s0",
        ),
    ],
)
def test_choices_that_contradict_are_refused_by_name(
    two_towers: Make, make_cluster: Make, change: Any, message: str
) -> None:
    graph = two_towers({"image": 4, "text": 2})
    stages = _choices(graph, {"image": [2], "text": [1]}, 2)
    cluster = make_cluster([1.0, 1.0])
    with pytest.raises(PlanError, match=message):
        assemble(graph, cluster, list(cluster.by_name), change(stages), [2, 2], GPIPE)


def test_layers_of_different_scope_cannot_share_a_stage(make_cluster: Make) -> None:
    graph = _chain(True, True, gradient=(True, True))
    layers = (graph.layers[0], graph.layers[1].model_copy(update={"scope": Scope.BATCH}))
    graph = graph.model_copy(update={"layers": layers})
    cluster = make_cluster([1.0])
    with pytest.raises(PlanError, match="mixes scopes: l0 has scope microbatch, l1 batch"):
        assemble(graph, cluster, list(cluster.by_name), [StageChoice("s", ("l0", "l1"), ((0, "all"),))], [2], GPIPE)

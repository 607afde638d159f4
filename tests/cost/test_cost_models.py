"""Modelled costs: rooflines, links and memory."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cluster.catalog import DEVICES
from plait.cluster.spec import Cluster, Device, Link
from plait.cost import links
from plait.cost.memory import fixed_bytes
from plait.cost.roofline import RooflineCosts
from plait.errors import CostError
from plait.model.graph import BranchGraph, Parameter, TensorSpec

MakeDevice = Callable[..., Device]


def test_large_batches_are_bound_by_arithmetic_small_ones_by_memory(
    graph: BranchGraph, make_device: MakeDevice
) -> None:
    costs, device, sheet = RooflineCosts(graph), make_device("A100-40"), DEVICES["A100-40"]
    assert sheet.fp32
    assert costs.layer("one", device, 4096).forward == pytest.approx(4096 * 2e6 / (0.4 * sheet.fp32))
    assert costs.layer("one", device, 1).forward == pytest.approx((2 * 4000 + 4e6) / sheet.bandwidth)
    half = RooflineCosts(graph, precision="half").layer("one", device, 4096)
    assert half.forward < costs.layer("one", device, 4096).forward


def test_only_gradients_that_flow_cost_time(graph: BranchGraph, make_device: MakeDevice) -> None:
    first, frozen, last = (RooflineCosts(graph).layer(n, make_device("T4"), 64) for n in ("one", "two", "three"))
    assert (first.input_gradient, first.weight_gradient) == (0.0, first.forward)
    assert (frozen.input_gradient, frozen.weight_gradient) == (frozen.forward, 0.0)
    assert last.backward == 2 * last.forward


def test_a_weight_gradient_costs_as_much_of_a_forward_as_the_layer_has_parameters_that_learn(
    graph: BranchGraph, make_device: MakeDevice
) -> None:
    adapter = Parameter(name="adapter", shape=(10, 1000), dtype="float32")
    two = graph.layers[1].model_copy(update={"parameters": (*graph.layers[1].parameters, adapter)})
    layers = (graph.layers[0], two, graph.layers[2])
    adapted = BranchGraph(model="Adapted", inputs=graph.inputs, values=graph.values, layers=layers)
    found = RooflineCosts(adapted).layer("two", make_device("T4"), 64)
    assert found.weight_gradient == pytest.approx(found.forward * 10 / 1010)


def test_a_layer_that_the_loss_does_not_need_has_no_backward(graph: BranchGraph, make_device: MakeDevice) -> None:
    aside = graph.model_copy(update={"values": {**graph.values, "c": TensorSpec(shape=(1, 1000), dtype="float32")}})
    found = RooflineCosts(aside).layer("three", make_device("T4"), 64)
    assert (found.backward, found.held_bytes) == (0.0, 0.0)


def test_a_slower_device_takes_as_many_times_longer(graph: BranchGraph, make_device: MakeDevice) -> None:
    costs = RooflineCosts(graph)
    whole, half = (costs.layer("one", make_device("T4", speed=s), 8).forward for s in (1.0, 0.5))
    assert half == pytest.approx(2 * whole)
    assert costs.step_seconds(1e6, make_device("T4")) == pytest.approx(7e6 / 320e9)


def test_a_types_own_rate_is_used_and_a_type_without_any_is_refused(
    graph: BranchGraph, make_device: MakeDevice
) -> None:
    cluster = Cluster.model_validate(
        {
            "device_types": {"chip": {"like": "chip-9", "memory": 1e9, "flops": 1e12}},
            "sites": [{"name": "s", "nodes": [{"name": "n", "devices": [{"type": "chip"}]}]}],
        }
    )
    costs = RooflineCosts.of(graph, cluster)
    assert costs.layer("one", cluster.devices[0], 4096).forward == pytest.approx(4096 * 2e6 / 0.4e12)
    with pytest.raises(CostError, match=r"Gaudi2.*no fp32 rate is known for Gaudi2"):
        costs.layer("one", make_device("Gaudi2"), 1)
    assert RooflineCosts(graph, precision="half").layer("one", make_device("Gaudi2"), 1).forward > 0


def test_a_message_takes_latency_and_its_bytes() -> None:
    assert links.message_seconds(Link(bandwidth=1e6, latency=0.5), 2e6) == 2.5


@given(st.integers(2, 64), st.integers(0, 10**9), st.floats(1e3, 1e9), st.floats(0, 1))
def test_collectives_cost_nothing_alone_and_all_reduce_is_scatter_and_gather(
    ranks: int, nbytes: int, bandwidth: float, latency: float
) -> None:
    link = Link(bandwidth=bandwidth, latency=latency)
    for seconds in (links.all_reduce_seconds, links.all_gather_seconds, links.broadcast_seconds):
        assert seconds(link, 1, nbytes) == 0
    assert links.all_reduce_seconds(link, ranks, nbytes) == pytest.approx(
        2 * links.all_gather_seconds(link, ranks, nbytes)
    )
    assert links.all_reduce_seconds(link, ranks, nbytes) >= 2 * (ranks - 1) / ranks * nbytes / bandwidth * (1 - 1e-9)
    assert links.broadcast_seconds(link, 2, nbytes) == links.message_seconds(link, nbytes)


def test_the_slowest_link_has_the_least_bandwidth_and_the_greatest_latency() -> None:
    sites = [{"name": s, "nodes": [{"name": f"n{s}", "devices": [{"type": "T4", "count": 2}]}]} for s in "ab"]
    between = [{"between": ("a", "b"), "bandwidth": 1e6, "latency": 0.5}]
    cluster = Cluster.model_validate({"sites": sites, "links": between})
    assert links.slowest_link(cluster, cluster.devices) == Link(bandwidth=1e6, latency=0.5)
    assert links.slowest_link(cluster, cluster.devices[:2]) == cluster.sites[0].nodes[0].link
    a, b, c, _ = cluster.devices
    assert links.transfer_seconds(cluster, a, a, 1e9) == 0
    assert links.transfer_seconds(cluster, a, c, 1e6) == 1.5
    assert links.transfer_seconds(cluster, a, b, 1e6) < 1e-3


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    trained = Parameter(name="a", shape=(10, 10), dtype="float32")
    frozen = Parameter(name="b", shape=(100,), dtype="bfloat16", trainable=False)
    found = fixed_bytes([trained, frozen], 2.0)
    assert (found.parameters, found.gradients, found.optimizer, found.total) == (600, 400, 800, 1800)

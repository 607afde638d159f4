"""The shapes of devices that are tried."""

import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from plait.cluster.spec import Cluster
from plait.plan.orders import MANY, Shape, device_sets, opposing, orders, pipelines, replicated
from plait.plan.settings import Request, Way, settings_of, splits, ways
from plait.plan.stages import balance
from plait.plan.strands import Work, heavy_branches, strand

Make = Callable[..., Any]


@pytest.mark.parametrize(("speeds", "sites"), [([1.0], 1), ([1.0, 0.5], 1), ([1, 0.9, 0.8, 0.7], 2), ([1.0] * 8, 2)])
def test_orders_hold_every_device_once_and_keep_sites_together(
    make_cluster: Make, speeds: list[float], sites: int
) -> None:
    cluster = make_cluster(speeds, sites=sites)
    found = orders(cluster.devices)
    assert 1 <= len(found) <= MANY
    assert len(set(found)) == len(found)
    for order in found:
        assert sorted(d.name for d in order) == sorted(cluster.by_name)
        assert len([site for site, _ in groupby(order, key=lambda d: d.site)]) == sites


def test_alike_devices_are_not_told_apart() -> None:
    text = "format: plait-cluster/1\nsites: [{name: s, nodes: [{name: n, devices: [{type: T4, count: 4}]}]}]"
    assert len(orders(Cluster.parse(text).devices)) == 1


def test_few_devices_are_tried_in_every_order(make_cluster: Make) -> None:
    assert len(orders(make_cluster([1, 0.9, 0.8]).devices)) == 6
    assert len(orders(make_cluster([1, 0.9, 0.8, 0.7], sites=2).devices)) == 8  # 2 x 2 within sites, 2 of the sites


def test_sets_are_all_devices_each_site_and_the_fastest_alone(make_cluster: Make) -> None:
    cluster = make_cluster([0.5, 1, 0.8, 0.7], sites=2)
    found = [[d.name for d in devices] for devices in device_sets(cluster)]
    assert found == [list(cluster.by_name), ["s0/n0/0", "s0/n0/1"], ["s1/n1/0", "s1/n1/1"], ["s0/n0/1"]]


def test_replicas_share_slots_and_chimera_uses_each_device_twice(make_cluster: Make) -> None:
    order = make_cluster([1.0] * 4).devices
    names = [[[d.name[-1] for d in slot] for slot in shape.slots] for shape in replicated(order)]
    assert names == [[["0", "1", "2", "3"]], [["0", "1"], ["2", "3"]], [["0", "2"], ["1", "3"]]]
    chimera = opposing(order)
    assert [[d.name[-1] for d in slot] for slot in chimera.slots] == [["0", "3"], ["1", "2"], ["2", "1"], ["3", "0"]]
    assert chimera.devices == tuple(order)


def test_faster_replicas_get_more_micro_batches_and_chimeras_half_each(make_cluster: Make) -> None:
    order = make_cluster([1.0, 0.5, 0.25]).devices
    setting = settings_of(Way(Shape((tuple(order),)), frozenset()), (1,) * 14, 0.0, recompute=False)
    assert setting is not None
    assert [len(s) for s in setting.shares] == [8, 4, 2]
    assert sorted(m for s in setting.shares for m in s) == list(range(14))
    assert settings_of(Way(Shape((tuple(order),)), frozenset()), (1, 1), 0.0, recompute=False) is None
    both = settings_of(Way(opposing(order[:2]), frozenset()), (1,) * 6, 0.0, recompute=False)
    assert both is not None
    assert both.shares == ((0, 1, 2), (3, 4, 5))
    assert settings_of(Way(opposing(order[:2]), frozenset()), (1,) * 5, 0.0, recompute=False) is None


def test_splits_cover_the_global_batch() -> None:
    assert splits(Request(10, micro_batch=4)) == [(4, 4, 2)]
    assert splits(Request(6)) == [(6,), (3, 3), (2, 2, 1, 1)]
    assert all(sum(s) == 100 and max(s) - min(s) <= 1 for s in splits(Request(100)))


def test_branches_run_both_ways_on_pipelines_only(two_towers: Make, make_cluster: Make) -> None:
    graph, cluster = two_towers({"image": 2, "text": 2}), make_cluster([1.0, 1.0])
    found = ways(graph, cluster, Request(8))
    assert {(w.shape.chimera, len(w.shape.slots), w.up) for w in found} == {
        (False, 1, frozenset()),
        (False, 2, frozenset()),
        (False, 2, frozenset({"text"})),
        (True, 2, frozenset()),
    }


def test_a_strand_costs_what_its_slots_will_do(two_towers: Make, make_cluster: Make, unit_costs: Make) -> None:
    graph, cluster = two_towers({"image": 4, "text": 2}), make_cluster([1.0, 0.5])
    work = Work(graph, cluster, unit_costs(seconds=1.0, held=10.0), 2.0)
    assert heavy_branches(work, cluster.devices[0], 1) == ("image", "text")
    setting = settings_of(Way(pipelines(cluster.devices), frozenset({"text"})), (2, 2, 1), 0.0, recompute=False)
    assert setting is not None
    image = strand(work, "image", setting)
    assert image.seconds.tolist() == [[15.0] * 4, [30.0] * 4]  # three passes over five samples
    # 1 KiB of weights, as much of gradients, twice that of Adam's; 3 micro-batches of up to 2 samples held.
    assert image.memory.tolist() == [[4096 + 60.0] * 4] * 2
    assert image.entry_seconds[0, 1, 0] == 2 * cluster.link(*cluster.devices).latency
    assert image.entry_seconds[0, 1, 1] > image.entry_seconds[0, 1, 0]
    cuts = balance([image, strand(work, "text", setting)], image.memory.sum(axis=1) * 9)
    assert cuts is not None
    assert cuts.bottleneck == pytest.approx(60, rel=0.01)  # 90 layer-seconds over speeds 1 and 0.5


def test_planning_needs_no_torch() -> None:
    code = (
        "import sys, plait.plan.search, plait.cluster.probe, plait.cost.table, plait.cost.roofline\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

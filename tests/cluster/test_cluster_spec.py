"""A cluster file that contradicts itself is refused by the name of the field; a good one is looked up."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cluster.spec import Cluster, Link
from plait.errors import FileError

GOOD = """
format: plait-cluster/1
device_types:
  slow: {like: local, speed: 0.5, memory: 1 GiB}
sites:
  - name: here
    nodes:
      - {name: n0, devices: [{type: slow, count: 2}]}
      - {name: n1, devices: [{type: A100-40}]}
  - name: there
    nodes:
      - {name: n2, devices: [{type: T4}]}
links:
  - {between: [here, there], bandwidth: 200 Mbit/s, latency: 5 ms}
"""


def _with(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_devices_stand_in_the_order_of_the_file_with_type_speed_and_memory() -> None:
    cluster = Cluster.parse(GOOD)
    assert [d.name for d in cluster.devices] == ["here/n0/0", "here/n0/1", "here/n1/0", "there/n2/0"]
    slow, _, fast, _ = cluster.devices
    assert (slow.like, slow.speed, slow.memory) == ("local", 0.5, 2**30)
    assert (fast.like, fast.speed, fast.memory) == ("A100-40", 1.0, 40 * 2**30)
    assert Cluster.parse(cluster.dump()) == cluster


def test_links_are_those_of_the_node_the_site_or_between_sites() -> None:
    cluster = Cluster.parse(GOOD)
    a, b, c, d = cluster.devices
    assert cluster.link(a, b) == cluster.sites[0].nodes[0].link
    assert cluster.link(a, c) == cluster.sites[0].link
    assert cluster.link(c, d) == cluster.link(d, c) == Link(bandwidth=25e6, latency=0.005)


def test_sites_that_are_not_joined_directly_are_reached_over_others() -> None:
    text = """
    format: plait-cluster/1
    sites: [SITES]
    links:
      - {between: [a, b], bandwidth: 8 Mbit/s, latency: 10 ms}
      - {between: [b, c], bandwidth: 16 Mbit/s, latency: 20 ms}
      - {between: [c, d], bandwidth: 4 Mbit/s, latency: 1 ms}
      - {between: [a, d], bandwidth: 80 Mbit/s, latency: 100 ms}
    """
    sites = ", ".join(f"{{name: {s}, nodes: [{{name: n{s}, devices: [{{type: T4}}]}}]}}" for s in "abcd")
    cluster = Cluster.parse(textwrap.dedent(text).replace("SITES", sites))
    a, b, c, d = cluster.devices
    assert cluster.link(a, c) == Link(bandwidth=1e6, latency=0.03)
    assert cluster.link(b, d) == Link(bandwidth=0.5e6, latency=0.021)
    assert cluster.link(a, d) == Link(bandwidth=10e6, latency=0.1)  # the direct one, though the way round is quicker


def test_a_type_like_another_is_as_fast_as_both_speeds_together() -> None:
    chained = "  slow: {like: local, speed: 0.5, memory: 1 GiB}\n  slower: {like: slow, speed: 0.5, memory: 1 GiB}"
    text = _with("  slow: {like: local, speed: 0.5, memory: 1 GiB}", chained).replace("type: T4", "type: slower")
    assert (Cluster.parse(text).devices[-1].like, Cluster.parse(text).devices[-1].speed) == ("local", 0.25)


def test_a_type_may_refine_the_catalogs_own() -> None:
    text = _with("slow: {like: local,", "T4: {like: T4, memory: 14 GiB}\n  slow: {like: local,")
    device = Cluster.parse(text).devices[-1]
    assert (device.like, device.speed, device.memory) == ("T4", 1.0, 14 * 2**30)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_with("A100-40", "A100-400"), r"n1.devices: unknown device type 'A100-400'; known: slow, A10, "),
        (_with("A100-40", "a100_40"), r"unknown device type 'a100_40' \(is 'A100-40' meant\?\)"),
        (_with("like: local", "like: titan rtx"), r"device_types.slow: like: unknown .*spells it 'Titan-RTX'"),
        (_with("like: local", "like: slow2"), None),
        (_with("speed: 0.5", "speed: 0"), "device_types.slow.speed: Input should be greater than 0"),
        (_with("speed: 0.5", "speed: -1"), "device_types.slow.speed: Input should be greater than 0"),
        (_with("memory: 1 GiB", "memory: 1 GHz"), "device_types.slow.memory: '1 GHz' is not a size"),
        (_with("memory: 1 GiB", "memory: 0 B"), "memory: must be more than zero"),
        (_with("count: 2", "count: 0"), "devices.0.count: Input should be greater than 0"),
        (_with("count: 2", "count: -3"), "devices.0.count: Input should be greater than 0"),
        (_with("count: 2", "count: 99999999999"), "devices.0.count: Input should be less than or equal to 100000"),
        (_with("count: 2", "count: two"), "devices.0.count: Input should be a valid integer"),
        (_with("name: there", "name: here"), "sites: here stands twice"),
        (_with("name: n2", "name: n1"), "nodes: n1 stands twice"),
        (_with("name: n2", "name: a/b"), "sites.1.nodes.0.name: String should match"),
        (_with("bandwidth: 200 Mbit/s", "bandwidth: 200 MiB"), "links.0.bandwidth: '200 MiB' is not a bandwidth"),
        (_with("bandwidth: 200 Mbit/s", "bandwidth: 0 bit/s"), "bandwidth: must be more than zero"),
        (_with("bandwidth: 200 Mbit/s", "bandwidth: 200"), "links.0.bandwidth: 200 has no unit"),
        (_with("latency: 5 ms", "latency: -5 ms"), "links.0.latency: '-5 ms' must be a finite number"),
        (_with("between: [here, there]", "between: [here, nowhere]"), r"links.0.between: \['here', 'nowhere'\] must"),
        (_with("between: [here, there]", "between: [here, here]"), "links.0.between"),
        (GOOD[: GOOD.index("links:")], "links: no way from site here to there; add a link"),
        (GOOD + "  - {between: [there, here], bandwidth: 1 Gbit/s}\n", "links: here and there stands twice"),
        (_with("sites:", "sitse:"), "sitse: unknown field"),
        (_with("plait-cluster/1", "plait-cluster/9"), "format: expected 'plait-cluster/1'"),
        ("format: plait-cluster/1\nsites: []", "sites: Tuple should have at least 1 item"),
    ],
)
def test_a_wrong_field_is_named(text: str, message: str | None) -> None:
    if message is None:  # a profile may know this type
        assert Cluster.parse(text).devices[0].like == "slow2"
        return
    with pytest.raises(FileError, match=message):
        Cluster.parse(text, "cluster.yaml")


def test_types_in_a_circle_are_refused() -> None:
    circle = "a: {like: b, memory: 1 GiB}\n  b: {like: a, memory: 1 GiB}\n  slow: {like: local,"
    with pytest.raises(FileError, match=r"device_types.a.like: a circle: a → b → a"):
        Cluster.parse(_with("slow: {like: local,", circle))


def test_many_large_nodes_are_refused_before_they_are_expanded() -> None:
    devices = ", ".join(["{type: T4, count: 100000}"] * 50)
    with pytest.raises(FileError, match="sites: 5000003 devices altogether; at most 100000"):
        Cluster.parse(_with("[{type: T4}]", f"[{devices}]"))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.floats(0.01, 100), st.floats(0, 10))
def test_any_cluster_reads_back_as_it_was_written(counts: list[int], speed: float, latency: float) -> None:
    sites = [{"name": f"s{i}", "nodes": [{"name": f"n{i}", "devices": [{"type": "x", "count": c}]}]}
             for i, c in enumerate(counts)]  # fmt: skip
    links = [{"between": ("s0", f"s{i}"), "bandwidth": 1e6 * i, "latency": latency} for i in range(1, len(counts))]
    types = {"x": {"like": "local", "speed": speed, "memory": 2.0**30}}
    cluster = Cluster.model_validate({"device_types": types, "sites": sites, "links": links})
    assert Cluster.parse(cluster.dump()) == cluster
    assert len(cluster.devices) == sum(counts)
    assert all(cluster.link(a, b) == cluster.link(b, a) for a in cluster.devices for b in cluster.devices if a != b)

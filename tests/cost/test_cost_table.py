"""Measured costs: the file, the lines between its sizes, the scaling by speed, and what isn't known."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.cluster.spec import Device
from plait.cost.combined import Combined
from plait.cost.costs import LayerCost, Source
from plait.cost.roofline import RooflineCosts
from plait.cost.table import CostTable, TableCosts, Timing, between
from plait.errors import CostError, FileError
from plait.model.graph import BranchGraph

MakeDevice = Callable[..., Device]


def _timing(seconds: float) -> Timing:
    return Timing(forward=seconds, input_gradient=2 * seconds, weight_gradient=3 * seconds, held=4 * seconds)


def _table(**layers: dict[int, float]) -> CostTable:
    sizes = {name: {n: _timing(s) for n, s in given.items()} for name, given in layers.items()}
    return CostTable(device_type="local", model="Linears", layers=sizes, step_seconds_per_byte=1e-9)


def test_a_profile_file_reads_back_as_it_was_written_and_names_units(tmp_path: Path) -> None:
    table = _table(linear={1: 1e-3, 8: 3.3e-3}, frozen={4: 2e-3})
    table.save(tmp_path / "profile.yaml")
    assert CostTable.load(tmp_path / "profile.yaml") == table
    text = (tmp_path / "profile.yaml").read_text()
    assert text.startswith("format: plait-profile/1\n")
    assert "forward: 3.3 ms" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device_type: local\nlayers: {}", "layers: none is measured"),
        ("device_type: local\nlayers: {a: {}}", "layers.a: Dictionary should have at least 1 item"),
        ("device_type: local\nlayers: {a: {0: {forward: 1 s}}}", r"layers.a.0.*greater than 0"),
        ("device_type: local\nlayers: {a: {1: {forward: 1}}}", "layers.a.1.forward: 1 has no unit"),
        ("layers: {a: {1: {forward: 1 s}}}", "device_type: missing"),
    ],
)
def test_a_wrong_profile_is_refused_by_field(text: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        CostTable.parse("format: plait-profile/1\n" + text)


def test_measured_where_the_device_is_the_one_measured_scaled_where_it_is_slower(
    graph: BranchGraph, make_device: MakeDevice
) -> None:
    costs = TableCosts(graph, _table(linear={4: 1.0}))
    assert costs.layer("one", make_device("local"), 4) == LayerCost(1.0, 2.0, 3.0, 4.0, Source.MEASURED)
    slow = make_device("local", kind="slow", speed=0.5)
    assert costs.layer("three", slow, 4) == LayerCost(2.0, 4.0, 6.0, 4.0, Source.SCALED)
    assert costs.step_seconds(1e9, slow) == pytest.approx(2.0)


def test_a_layers_own_name_goes_before_its_signature(graph: BranchGraph, make_device: MakeDevice) -> None:
    costs = TableCosts(graph, _table(linear={4: 1.0}, three={4: 9.0}))
    assert costs.layer("one", make_device("local"), 4).forward == 1.0
    assert costs.layer("three", make_device("local"), 4).forward == 9.0


@given(st.floats(0, 10), st.floats(0, 10), st.sets(st.integers(1, 64), min_size=2, max_size=5), st.integers(1, 100))
def test_costs_that_are_linear_in_samples_are_met_exactly(
    fixed: float, each: float, sizes: set[int], samples: int
) -> None:
    found = between({n: _timing(fixed + each * n) for n in sizes}, samples)
    assert found.forward == pytest.approx(fixed + each * samples, abs=1e-9)
    assert found.held == pytest.approx(4 * (fixed + each * samples), abs=1e-9)


@given(st.dictionaries(st.integers(1, 64), st.floats(0, 10), min_size=1, max_size=5), st.integers(1, 200))
def test_noisy_costs_are_never_negative_and_never_fall_beyond_what_was_measured(
    sizes: dict[int, float], samples: int
) -> None:
    found = between({n: _timing(s) for n, s in sizes.items()}, samples).forward
    assert found >= 0
    largest = max(sizes)
    if samples >= largest:
        assert found >= sizes[largest]
    else:
        assert found <= max(*sizes.values(), 1e-300)


def test_what_is_not_known_is_refused_with_layer_and_device(graph: BranchGraph, make_device: MakeDevice) -> None:
    costs = TableCosts(graph, _table(linear={4: 1.0}))
    with pytest.raises(CostError, match=r"layer two \(signature frozen\): the profile of local doesn't hold it"):
        costs.layer("two", make_device("local"), 4)
    with pytest.raises(CostError, match=r"layer one: no cost on T4 \(s/n/0\), which is like T4.*measured on local"):
        costs.layer("one", make_device("T4"), 4)
    with pytest.raises(CostError, match="tensor_parallel 2"):
        costs.layer("one", make_device("local"), 4, 2)
    with pytest.raises(CostError, match="Linears has no such layer"):
        costs.layer("four", make_device("local"), 4)
    with pytest.raises(CostError, match="optimizer step: no cost on T4"):
        costs.step_seconds(1.0, make_device("T4"))


def test_the_first_source_that_knows_a_figure_gives_it(graph: BranchGraph, make_device: MakeDevice) -> None:
    costs = Combined(TableCosts(graph, _table(linear={4: 1.0})), RooflineCosts(graph))
    assert costs.layer("one", make_device("local"), 4).source is Source.MEASURED
    assert costs.layer("one", make_device("T4"), 4).source is Source.MODELLED
    assert costs.step_seconds(1e9, make_device("local")) == pytest.approx(1.0)
    with pytest.raises(CostError, match=r"signature frozen.*; local \(s/n/0\): no fp32 rate is known"):
        costs.layer("two", make_device("local"), 4)

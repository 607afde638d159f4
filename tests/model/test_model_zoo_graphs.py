"""What capture finds in every model of the zoo: as the docs' table says, and nothing is sent that a stage can read."""

from functools import cache
from pathlib import Path

import pytest
import torch

from plait.model import zoo
from plait.model.capture import Captured, capture
from plait.model.tape import Kind
from support import zoo_models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MODELS = [name for name in zoo.__all__ if name.islower()]


@cache
def captured(name: str) -> Captured:
    return capture(*zoo_models.make(name))


def rows() -> dict[str, list[str]]:
    """Model → the other cells of its row."""
    lines = [line.strip("|\n ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_every_model_of_the_zoo_has_its_row() -> None:
    assert list(rows()) == MODELS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_row_tells_what_capture_finds(name: str) -> None:
    graph = captured(name).graph
    branches, layers, interactions, *_ = rows()[name]
    assert branches == ", ".join(f"{branch} {len(found)}" for branch, found in graph.branches.items())
    assert (int(layers), int(interactions)) == (len(graph.layers), len(graph.interactions))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_value_between_layers_follows_from_the_inputs_alone(name: str) -> None:
    """It would be read where it is used. A module's call, and what a parameter takes part in, is work."""
    found = captured(name)
    work: list[bool] = []
    for node in found.tape.nodes:
        work.append(node.kind in (Kind.CALL, Kind.PARAMETER) or any(work[a] for a in node.arguments))
    sent = {(layer.name, value): node for layer in found.layers for value, node in layer.writes.items()}
    assert not [value for value, node in sent.items() if not work[node]]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_runs_on_the_inputs_and_values_that_it_names(name: str) -> None:
    found = captured(name)
    values = dict(zoo_models.make(name)[1])
    with torch.no_grad():
        for layer in found.graph.layers:
            made = found.code[layer.name]({n: values[n] for n in (*layer.inputs, *layer.reads)})
            assert set(made) == set(layer.writes)
            values |= made

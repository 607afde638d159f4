"""The docs' table of models is that of the present code."""

from pathlib import Path

import pytest

from plait.model import zoo
from plait.model.capture import capture
from support import zoo_models

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
MODELS = [name for name in zoo.__all__ if name.islower()]


def rows() -> dict[str, list[str]]:
    """Model → the other cells of its row."""
    lines = [line.strip("|\n ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_every_model_of_the_zoo_has_its_row() -> None:
    assert list(rows()) == MODELS


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_row_tells_what_capture_finds(name: str) -> None:
    graph = capture(*zoo_models.make(name)).graph
    branches, layers, interactions, *_ = rows()[name]
    assert branches == ", ".join(f"{branch} {len(found)}" for branch, found in graph.branches.items())
    assert (int(layers), int(interactions)) == (len(graph.layers), len(graph.interactions))

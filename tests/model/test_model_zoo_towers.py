"""Dual towers and fusion models of the zoo, given as they are: the graph is the one that an expert would draw."""

import pytest

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope


def branches(graph: BranchGraph) -> dict[str, list[str]]:
    """Branch → its layers' names, the branch's own name left out."""
    return {b: [x.name.removeprefix(f"{b}.") for x in layers] for b, layers in graph.branches.items()}


def meetings(graph: BranchGraph) -> set[tuple[str, str]]:
    """(layer, layer) for each interaction."""
    return {(source, target) for _, source, target in graph.interactions}


def of_batch(graph: BranchGraph) -> set[str]:
    """Layers of batch scope."""
    return {layer.name for layer in graph.layers if layer.scope is Scope.BATCH}


VISION = ["embeddings", "encoder.layers.0", "encoder.layers.1"]
TOWERS = {
    "siglip": {
        "vision_model": [*VISION, "head"],
        "text_model": ["embeddings", "encoder.layers.0", "encoder.layers.1"],
        "loss": ["loss"],
    },
    "chinese_clip": {
        "vision_model": VISION,
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    },
    "dual_encoder": {
        "vision_model": ["embeddings", "layers.0", "layers.1"],
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    },
}


@pytest.mark.parametrize("name", TOWERS)
def test_two_towers_meet_only_in_a_loss_over_the_batch(name: str) -> None:
    graph = capture(*getattr(zoo, name)()).graph
    assert branches(graph) == TOWERS[name]
    last = {layers[-1].name for branch, layers in graph.branches.items() if branch != "loss"}
    assert meetings(graph) == {(layer, "loss") for layer in last}
    assert of_batch(graph) == {"loss"}
    assert [(t.scope, t.coefficient) for t in graph.losses] == [(Scope.BATCH, 1.0)]
    for value, _, _ in graph.interactions:
        assert graph.values[value].shape == (1, 32)  # one embedding per sample, and no masks beside it

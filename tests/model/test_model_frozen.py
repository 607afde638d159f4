"""Which halves of a backward the layers of partly frozen models need."""

import torch
from torch import Tensor, nn

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import Backward, BranchGraph

NONE, WEIGHTS, INPUTS, BOTH = (Backward(i, w) for i in (False, True) for w in (False, True))


def halves(graph: BranchGraph) -> dict[str, Backward]:
    return {layer.name: graph.backward(layer.name) for layer in graph.layers}


def test_a_locked_tower_needs_none_but_its_projection_learns() -> None:
    found = halves(capture(*zoo.clip_frozen_vision()).graph)
    assert found == {
        "vision_model.embeddings": NONE,
        "vision_model.encoder.layers.0": NONE,
        "vision_model.encoder.layers.1": WEIGHTS,  # with the projection, which is not frozen
        "text_model.embeddings": WEIGHTS,
        "text_model.encoder.layers.0": BOTH,
        "text_model.encoder.layers.1": BOTH,
        "loss": BOTH,
    }


def test_a_frozen_decoder_behind_a_projector_passes_the_gradient_on() -> None:
    graph = capture(*zoo.llava_projector()).graph
    found = halves(graph)
    assert {v for n, v in found.items() if "language_model" in n} == {INPUTS}
    assert found["model.vision_tower.embeddings"] == NONE
    assert {n.rsplit(".", 2)[0] for n, p in graph.parameters().items() if p.trainable} == {
        "model.multi_modal_projector"
    }


class Aside(nn.Module):
    """Its second layer makes an output that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.one(x)
        return {"loss": hidden.square().mean(), "seen": self.two(hidden)}


def test_what_the_loss_does_not_depend_on_needs_none() -> None:
    graph = capture(Aside(), {"x": torch.randn(4, 4)}, outputs=["seen"]).graph
    (seen,) = (x for x in graph.layers if x.modules == ("two",))
    assert graph.backward(seen.name) == NONE
    assert not any(p.trainable for p in seen.parameters)

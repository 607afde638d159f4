"""Memory for a rank's own tensors alone, filled from files or as the model's code initialises them."""

import torch
from torch import nn

from plait.model.deferred import deferred
from plait.runtime.start import materialise


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.one.weight.kind = "tied"  # type: ignore[attr-defined]
        self.other = nn.Linear(2, 2)
        self.register_buffer("ids", torch.arange(4), persistent=False)
        self.register_buffer("more", torch.arange(4))


def test_only_wanted_tensors_get_memory_and_tied_ones_stay_one() -> None:
    model = deferred(Tied)
    canonical = {"one.weight": "one.weight", "two.weight": "one.weight"}
    made = materialise(model, {"one.weight", "ids"}, canonical, torch.device("cpu"))
    assert set(made) == {"one.weight", "ids"}
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    assert {name for name, tensor in found.items() if not tensor.is_meta} == {"one.weight", "two.weight", "ids"}
    assert found["two.weight"] is found["one.weight"] is made["one.weight"]
    assert found["one.weight"].kind == "tied"  # type: ignore[attr-defined]

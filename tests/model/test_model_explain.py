"""A model whose layers run or don't by chance is refused, with the module and the setting named."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import capture

WIDTH = 8


def test_whispers_layerdrop_is_named_and_what_to_do() -> None:
    with pytest.raises(
        CaptureError, match=r"^model\.encoder \(modeling_whisper\.py:\d+\): .*layerdrop = 0\.5 skips.*to 0"
    ):
        capture(*zoo.whisper(layerdrop=0.5))


class Skipping(nn.Module):
    """Skips layers by chance as models do, drawing from torch, numpy or Python."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layerdrop, self.source = 0.3, source

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            skip = self.training and self._draw() < self.layerdrop
            x = x if skip else layer(x)
        return x.square().mean()

    def _draw(self) -> float:
        return random.random() if self.source == "python" else float(np.random.random())  # noqa: S311


@pytest.mark.parametrize("source", ["python", "numpy"])
def test_draws_that_leave_no_trace_are_noticed(source: str) -> None:
    model = nn.Sequential(Skipping(source))
    before = host_state()
    with pytest.raises(CaptureError, match=r"^0: the setting layerdrop = 0\.3 skips layers at random"):
        capture(model, {"input": torch.randn(4, WIDTH)})
    assert host_state() == before


def host_state() -> tuple[object, ...]:
    drawn = np.random.get_state(legacy=False)
    return random.getstate(), drawn["state"]["key"].tolist(), drawn["state"]["pos"]


def test_a_decision_by_values_is_told_with_its_line() -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            return self.two(x).mean() if x.sum() > 0 else x.mean()

    with pytest.raises(CaptureError, match=r"test_model_explain\.py:\d+.*must not decide by the values"):
        capture(Deciding(), {"x": torch.randn(4, WIDTH)})

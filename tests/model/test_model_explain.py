"""A model whose layers run or don't by chance is refused, with the module and the setting named."""

import random
from collections.abc import Callable

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


class Between(nn.Module):
    """Two linear layers; ``code`` stands between them."""

    def __init__(self, code: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into, self.out, self.code = nn.Linear(4, 4), nn.Linear(4, 4), code

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.out(self.code(self.into(x))).square().mean()
        return loss


def refuse(hidden: Tensor) -> Tensor:
    raise ValueError("bad width")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (lambda h: -h if h.sum() > 0 else h, "must not decide by the values of tensors"),
        (lambda h: torch.from_numpy(h.detach().numpy()) + h, "keep to torch's operations"),
        (lambda h: h + h.data_ptr(), "keep to torch's operations"),
        (lambda h: h[h[:, 0] > 0], "how many entries this gives depends on the values"),
        (refuse, "the model fails on the example batch: ValueError: bad width"),
    ],
)
def test_what_export_refuses_is_told_with_its_place_and_what_to_do(
    code: Callable[[Tensor], Tensor], words: str
) -> None:
    with pytest.raises(CaptureError, match=rf"\(test_model_explain\.py:\d+\).*{words}"):
        capture(Between(code), {"x": torch.randn(4, 4)})


def test_a_missing_input_is_named() -> None:
    class Two(Between):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(x + y)

    with pytest.raises(CaptureError, match=r"missing 1 required positional argument: 'y'"):
        capture(Two(torch.tanh), {"x": torch.randn(4, 4)})


def test_what_is_no_module_or_no_batch_is_told() -> None:
    with pytest.raises(CaptureError, match=r"it is a function, no nn\.Module"):
        capture(refuse, {"x": torch.randn(4, 4)})  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match="it is a list; give tensors by name"):
        capture(Between(torch.tanh), [torch.randn(4, 4)])  # type: ignore[arg-type]

"""A model that fails of its own, on the example batch, is told as it fails, with the module and the line."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.capture import capture

Forward = Callable[["Two", Tensor, Tensor], Tensor]


class Two(nn.Module):
    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.a, self.b, self.given = nn.Linear(4, 4), nn.Linear(4, 4), forward

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.given(self, x, y)


def distance(model: Two, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(model.a(x), model.b(y))


def looked_up(model: Two, x: Tensor, y: Tensor) -> Tensor:
    settings: dict[str, float] = {}
    return distance(model, x, y) * settings["scale"]


def leaving(model: Two, x: Tensor, y: Tensor) -> Tensor:
    raise SystemExit(2)


def infinite(model: Two, x: Tensor, y: Tensor) -> Tensor:
    return distance(model, x, y) / 0.0


def masked(model: Two, x: Tensor, y: Tensor) -> Tensor:
    positive = model.a(x)[x > 0]
    return distance(model, x, y) + nn.functional.l1_loss(positive, positive * 2)


def said(model: nn.Module, y: Tensor | None = None) -> str:
    with pytest.raises(CaptureError) as caught:
        capture(model, {"x": torch.randn(4, 4), "y": torch.randn(4, 4) if y is None else y})
    return str(caught.value)


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (torch.ones(4, 4, dtype=torch.long), "b (linear.py:"),
        (torch.ones(4, 4).double(), "mat1 and mat2 must have the same dtype, but got Double and Float"),
        (torch.ones(4, 3), "cannot be multiplied (4x3 and 4x4)"),
        (torch.full((4, 4), torch.nan), "its loss for the example batch is nan, not finite; the input y is not finite"),
        (torch.ones(4, 4).to_sparse(), "'y' is torch.sparse.FloatTensor; it must be an ordinary tensor"),
        (torch.ones(4, 4, device="meta"), "'y' is on the meta device"),
    ],
)
def test_a_batch_that_does_not_suit_the_model_is_told(y: Tensor, words: str) -> None:
    assert words in said(Two(distance), y)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (looked_up, "the model fails on the example batch: KeyError: 'scale' ("),
        (leaving, "the model fails on the example batch: SystemExit: 2 ("),
        (infinite, "its loss for the example batch is inf, not finite; are a logarithm, root or division"),
        (masked, "how many entries this gives depends on the values of tensors"),
    ],
)
def test_a_model_that_fails_is_told(forward: Forward, words: str) -> None:
    found = said(Two(forward))
    assert found.startswith(("Two", "the model"))
    assert words in found


def test_a_missing_input_is_told_as_python_does() -> None:
    with pytest.raises(CaptureError, match=r"Two: .*forward\(\) missing 1 required positional argument: 'y'"):
        capture(Two(distance), {"x": torch.randn(4, 4)})


def test_weights_without_a_shape_are_told_by_name() -> None:
    lazy = Two(distance)
    lazy.a = nn.LazyLinear(4)
    assert said(lazy).startswith("a.weight: its shape is not known yet")


def test_a_weight_that_is_not_finite_is_told_by_name() -> None:
    model = Two(distance)
    with torch.no_grad():
        model.b.bias.fill_(torch.inf)
    assert "the parameter b.bias is not finite either" in said(model)

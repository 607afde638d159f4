"""Models written by hand: towers of linear layers, residuals, shared weights."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example


class TwoTowers(nn.Module):
    """Two towers of linear layers, fused by a head, with a mean squared error over samples."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.right = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(2 * width, width)

    def forward(self, left: Tensor, right: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Prediction and loss; all tensors ``samples × width``."""
        for one, two in zip(self.left, self.right, strict=True):
            left, right = torch.relu(one(left)), torch.tanh(two(right))
        prediction = self.head(torch.cat([left, right], dim=-1))
        return {"loss": functional.mse_loss(prediction, target), "prediction": prediction}


class Residual(nn.Module):
    """A chain whose first value is added again at its end, so that it spans every cut; the loss is a scalar."""

    def __init__(self, width: int = 16, layers: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(width))
        self.dropout = dropout

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean absolute error of ``x`` (samples × width) after the chain against ``y``."""
        first = hidden = self.layers[0](x)
        for layer in self.layers[1:]:
            hidden = functional.dropout(torch.relu(layer(hidden)), self.dropout, self.training) * self.scale
        loss: Tensor = (hidden + first - y).abs().mean()
        return loss


class Siamese(nn.Module):
    """One tower called for both inputs (shared weights), and a loss over the matrix of all pairs in the batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tower = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def _embed(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = torch.tanh(layer(x))
        return functional.normalize(x, dim=-1)

    def forward(self, one: Tensor, two: Tensor) -> dict[str, Tensor]:
        """Contrastive loss of pairs; both ``samples × width``."""
        first, second = self._embed(one), self._embed(two)
        scores = first @ second.T * self.temperature.exp()
        return {"loss": functional.cross_entropy(scores, torch.arange(len(one))), "first": first}


def two_towers(samples: int = 4, width: int = 16) -> Example:
    """TwoTowers with a batch."""
    return TwoTowers(width), {n: torch.randn(samples, width) for n in ("left", "right", "target")}


def residual(samples: int = 4, width: int = 16, dropout: float = 0.1) -> Example:
    """Residual with a batch."""
    return Residual(width, dropout=dropout), {n: torch.randn(samples, width) for n in ("x", "y")}


def siamese(samples: int = 4, width: int = 16) -> Example:
    """Siamese with a batch."""
    return Siamese(width), {n: torch.randn(samples, width) for n in ("one", "two")}

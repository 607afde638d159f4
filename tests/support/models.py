"""Models with the same weights and batch each time. Importable by name, so that ranks can be sent to make them."""

import torch
from torch import Tensor, nn

from plait.model import zoo

SAMPLES = 8
Example = tuple[nn.Module, dict[str, Tensor]]


def clip(dropout: float = 0.0) -> Example:
    torch.manual_seed(1)
    return zoo.clip(layers=(3, 3), width=32, samples=SAMPLES, dropout=dropout)


def clip_with_dropout() -> Example:
    return clip(0.2)


def gpt2() -> Example:
    """Labels are ignored unevenly; the last micro-batch of two samples has none at all."""
    torch.manual_seed(2)
    model, batch = zoo.gpt2(layers=3, samples=SAMPLES, dropout=0.0)
    labels = batch["labels"].clone()
    labels[0, 2:] = -100
    labels[3, :6] = -100
    labels[6:] = -100
    return model, {**batch, "labels": labels}


def smaller_clip() -> Example:
    torch.manual_seed(1)
    return zoo.clip(layers=(2, 3), width=32, samples=SAMPLES)

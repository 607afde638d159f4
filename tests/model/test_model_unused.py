"""A layer is not sent what it does nothing with."""

import torch
from torch import Tensor, nn

from plait.model.capture import Captured, capture

WIDTH = 8


class Block(nn.Module):
    """Attends to ``other`` or not; ``needs`` says whether it can be called without."""

    def __init__(self, attends: bool, needs: bool = False) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.attends, self.needs = attends, needs

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = self.inner(x)
        if self.needs and other is None:
            x = x + 1.0
        return x + other if self.attends and other is not None else x


class Decoder(nn.Module):
    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.encoder = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        other = self.encoder(x)
        for block in self.blocks:
            y = block(y, other)
        return y.square().mean()


def captured(*blocks: Block) -> Captured:
    return capture(Decoder(*blocks), {"x": torch.randn(4, WIDTH), "y": torch.randn(4, WIDTH)})


def readers(found: Captured) -> list[str]:
    return [layer.name for layer in found.graph.layers if "encoder" in layer.reads]


def test_only_layers_that_use_a_value_read_it() -> None:
    found = captured(Block(False), Block(True), Block(False), Block(True))
    assert readers(found) == ["blocks.1", "blocks.3"]


def test_a_layer_that_does_otherwise_without_an_argument_still_gets_it() -> None:
    assert readers(captured(Block(False, needs=True), Block(True), Block(False))) == ["blocks.0", "blocks.1"]

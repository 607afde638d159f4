"""A model that export refuses, since its towers decide by the values of tensors, and its description by hand.

Importable by name, so that ranks can be sent to make them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.by_hand import Branches, LossTerm, Part

SAMPLES, WIDTH, WORDS = 8, 16, 11


class Block(nn.Module):
    """A residual step, with a shortcut that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not x.any():
            return x
        step: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        return x + step


class Vision(nn.Module):
    """Patches with missing pixels; whether any are missing differs from micro-batch to micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def stem(self, pixels: Tensor) -> Tensor:
        if pixels.isnan().any():
            pixels = pixels.nan_to_num(0.0)
        patches: Tensor = self.patch(pixels)
        return patches.flatten(2).transpose(1, 2)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.stem(pixels)
        for block in self.blocks:
            x = block(x)
        return x.mean(1)


class Text(nn.Module):
    """Tokens; its embedding is also its head (tied)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return x


class Pair(nn.Module):
    """Contrastive loss and a token loss over labels of which some are ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.text = Vision(), Text()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.spare = nn.Linear(2, 2)

    def contrast(self, image: Tensor, text: Tensor) -> Tensor:
        logits = self.scale * functional.normalize(image, dim=-1) @ functional.normalize(text, dim=-1).T
        at = torch.arange(len(logits))
        return (functional.cross_entropy(logits, at) + functional.cross_entropy(logits.T, at)) / 2

    def tell(self, text: Tensor, labels: Tensor) -> Tensor:
        logits = text @ self.text.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def forward(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        text = self.text(ids)
        contrast = self.contrast(self.vision(pixels), text.mean(1))
        return {"loss": contrast + 0.5 * self.tell(text, labels)}


def pair() -> tuple[Pair, dict[str, Tensor]]:
    """The model and a batch: one image lacks pixels, labels are ignored unevenly, in two samples all of them."""
    torch.manual_seed(4)
    model = Pair()
    pixels = torch.randn(SAMPLES, 3, 8, 8)
    pixels[2, :, :3] = torch.nan
    ids = torch.randint(0, WORDS, (SAMPLES, 6))
    labels = torch.randint(0, WORDS, (SAMPLES, 6))
    labels[0, 2:] = labels[3, :5] = labels[6:] = -100
    return model, {"pixels": pixels, "ids": ids, "labels": labels}


def branches(_: nn.Module | None = None) -> Branches:
    """``Pair`` by hand."""
    vision: list[Part | str] = [
        Part("vision.stem", run=lambda model, pixels: model.vision.stem(pixels), reads="pixels", uses="vision.patch"),
        *("vision.blocks.0", "vision.blocks.1", "vision.blocks.2"),
        Part("pool", run=lambda _, x: x.mean(1), writes="image"),
    ]
    text: list[Part | str] = [
        Part("text.tokens", reads="ids"),
        "text.blocks.0",
        Part("text.blocks.1", writes="text"),
        Part("tell", run=lambda model, *given: model.tell(*given), reads=["text", "labels"], uses="text.tokens"),
    ]
    contrast = Part(
        "contrast",
        run=lambda model, image, words: model.contrast(image, words.mean(1)),
        reads={"image": "image", "words": "text"},
        uses="scale",
    )
    return Branches(
        {"vision": vision, "text": text, "joint": [contrast]},
        losses=["contrast", LossTerm("tell", coefficient=0.5, count="labels")],
        outputs={"image_embeds": "image"},
    )


def as_is(model: nn.Module) -> nn.Module:
    """No description."""
    return model


def pair_model() -> Pair:
    """For a job."""
    return pair()[0]


class Pairs:
    """A job's data: the same batch at every step."""

    def batch(self, _: int) -> dict[str, Tensor]:
        return pair()[1]

    def held_out(self) -> list[dict[str, Tensor]]:
        return [pair()[1]]


def width(outputs: dict[str, Tensor], _: dict[str, Tensor]) -> float:
    """A metric that tells whether the output arrived."""
    return float(outputs["image_embeds"].shape[-1])

"""Transformer towers for image, text and audio, written by hand, that meet in one contrastive loss."""

from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example


class Attention(nn.Module):
    """Self-attention over all positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.joint = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: samples × positions × width."""
        parts = self.joint(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0))
        found: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return found


class Mlp(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: samples × positions × width."""
        found: Tensor = self.shrink(functional.gelu(self.grow(x)))
        return found


class Block(nn.Module):
    """A transformer block with norms before its two parts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: samples × positions × width."""
        x = x + self.attention(self.norm_attention(x))
        found: Tensor = x + self.mlp(self.norm_mlp(x))
        return found


class Patches(nn.Module):
    """Images as a sequence of square patches."""

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(channels, width, patch, patch)

    def forward(self, image: Tensor) -> Tensor:
        """``image``: samples × channels × height × width."""
        found: Tensor = self.cut(image).flatten(2).transpose(1, 2)
        return found


class Tower(nn.Module):
    """What one kind of data is embedded by, positions, blocks, and a projection of their mean."""

    def __init__(self, embed: nn.Module, positions: int, width: int, heads: int, layers: int, joint: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, joint, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Unit vectors, samples × joint."""
        x = self.embed(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return functional.normalize(self.project(self.norm(x).mean(1)), dim=-1)


class ThreeTowers(nn.Module):
    """Towers for image, text and audio; the loss is the mean of the contrastive losses of their three pairs."""

    def __init__(self, image: Tower, text: Tower, audio: Tower) -> None:
        super().__init__()
        self.image, self.text, self.audio = image, text, audio
        self.temperature = nn.Parameter(torch.tensor(2.5))

    def forward(self, image: Tensor, text: Tensor, audio: Tensor) -> dict[str, Tensor]:
        """Loss and the three embeddings of images, tokens (samples × words) and frames (samples × frames × bins)."""
        found = {"image": self.image(image), "text": self.text(text), "audio": self.audio(audio)}
        scale = self.temperature.exp()
        losses = [contrastive(scale * (one @ two.T)) for one, two in combinations(found.values(), 2)]
        return {"loss": torch.stack(losses).mean(), **found}


def contrastive(scores: Tensor) -> Tensor:
    """Symmetric cross-entropy over samples × samples ``scores``, whose diagonal holds the pairs."""
    same = torch.arange(len(scores), device=scores.device)
    return (functional.cross_entropy(scores, same) + functional.cross_entropy(scores.T, same)) / 2


def three_towers(
    *, layers: tuple[int, int, int] = (2, 2, 2), width: int = 32, image: int = 16, patch: int = 8, words: int = 6,
    vocabulary: int = 50, frames: int = 5, samples: int = 4,
) -> Example:  # fmt: skip
    """ThreeTowers with (image, text, audio) towers of ``layers`` blocks, and a batch; on the default device."""
    bins, heads = 80, max(1, width // 64)
    sides = (image // patch) ** 2, words, frames
    embeds = Patches(3, patch, width), nn.Embedding(vocabulary, width), nn.Linear(bins, width)
    towers = [
        Tower(embed, positions, width, heads, count, width)
        for embed, positions, count in zip(embeds, sides, layers, strict=True)
    ]
    batch = {
        "image": torch.randn(samples, 3, image, image),
        "text": torch.randint(0, vocabulary, (samples, words)),
        "audio": torch.randn(samples, frames, bins),
    }
    return ThreeTowers(*towers).train(), batch

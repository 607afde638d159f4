"""An ALBEF-like model, written by hand: align image and text before fusing them (Li et al., 2021), three losses."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example
from plait.model.zoo.three_towers import Block, Patches, contrastive

IGNORED = -100


class FusionBlock(nn.Module):
    """A transformer block whose words, after attending to each other, attend to the image's patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.block = Block(width, heads)
        self.norm = nn.LayerNorm(width)
        self.crossing = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, words: Tensor, patches: Tensor) -> Tensor:
        """``words``: samples × words × width; ``patches``: samples × patches × width."""
        query = self.norm(words)
        found: Tensor = self.block(words + self.crossing(query, patches, patches, need_weights=False)[0])
        return found


class Encoder(nn.Module):
    """Embeds what it is given and applies blocks."""

    def __init__(self, embed: nn.Module, positions: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(0.02 * torch.randn(positions, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Samples × positions × width."""
        x = self.embed(x) + self.positions
        for block in self.blocks:
            x = block(x)
        return x


class Albef(nn.Module):
    """Image and text encoders, and fusion blocks in which words attend to the image.

    The loss is the sum of: contrastive over all pairs; whether image and text match, for the pairs and for each
    text with the image of another sample that is most like it (a hard negative); and the masked words' tokens.
    """

    def __init__(self, image: Encoder, text: Encoder, width: int, heads: int, fusion: int, vocabulary: int) -> None:
        super().__init__()
        self.image_encoder, self.text_encoder = image, text
        self.image_projection, self.text_projection = nn.Linear(width, width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.tensor(2.5))
        self.fusion = nn.ModuleList(FusionBlock(width, heads) for _ in range(fusion))
        self.match_head = nn.Linear(width, 2)
        self.word_head = nn.Linear(width, vocabulary)

    def fuse(self, words: Tensor, patches: Tensor) -> Tensor:
        """``words`` after attending to ``patches``."""
        for block in self.fusion:
            words = block(words, patches)
        return words

    def forward(self, image: Tensor, text: Tensor, masked: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss for images, tokens, the same with some masked, and the masked ones' tokens (elsewhere -100)."""
        patches, words = self.image_encoder(image), self.text_encoder(text)
        seen = functional.normalize(self.image_projection(patches[:, 0]), dim=-1)
        read = functional.normalize(self.text_projection(words[:, 0]), dim=-1)
        scores = self.temperature.exp() * (read @ seen.T)
        matched, other = self.fuse(words, patches), self.fuse(words, patches[_most_alike(scores)])
        guessed = self.word_head(self.fuse(self.text_encoder(masked), patches))
        loss = contrastive(scores) + _matching(self.match_head(matched[:, 0]), self.match_head(other[:, 0]))
        return {"loss": loss + functional.cross_entropy(guessed.transpose(1, 2), labels, ignore_index=IGNORED)}


def _most_alike(scores: Tensor) -> Tensor:
    """For each text, the image of another sample with the highest of its ``scores``."""
    own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    return scores.masked_fill(own, float("-inf")).argmax(-1)


def _matching(matched: Tensor, other: Tensor) -> Tensor:
    found: Tensor = -(matched.log_softmax(-1)[:, 1] + other.log_softmax(-1)[:, 0]).mean() / 2
    return found


def albef(
    *, width: int = 32, layers: int = 2, fusion: int = 2, image: int = 16, patch: int = 8, words: int = 8,
    vocabulary: int = 50, samples: int = 4,
) -> Example:  # fmt: skip
    """Albef with a batch; one word in four is masked, by the token 1."""
    heads = 2
    images = Encoder(Patches(3, patch, width), (image // patch) ** 2, width, heads, layers)
    texts = Encoder(nn.Embedding(vocabulary, width), words, width, heads, layers)
    text = torch.randint(2, vocabulary, (samples, words))
    hidden = torch.arange(words) % 4 == 1
    batch = {
        "image": torch.randn(samples, 3, image, image),
        "text": text,
        "masked": text.masked_fill(hidden, 1),
        "labels": text.masked_fill(~hidden, IGNORED),
    }
    return Albef(images, texts, width, heads, fusion, vocabulary), batch

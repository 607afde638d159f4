"""What each model of the zoo comes as."""

import torch
from torch import Tensor, nn

Example = tuple[nn.Module, dict[str, Tensor]]
"""A model in training mode, and a batch for it."""


def image_and_text(samples: int, image: int, words: int, vocabulary: int, *, lowest: int = 3) -> dict[str, Tensor]:
    """A batch of square colour images of ``image`` pixels and of texts without padding, tokens from ``lowest`` on."""
    return {
        "input_ids": torch.randint(lowest, vocabulary, (samples, words)),
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "pixel_values": torch.randn(samples, 3, image, image),
    }

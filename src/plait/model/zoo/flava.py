"""FLAVA's three transformers by ``transformers``, with two of its training losses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example
from plait.model.zoo.three_towers import contrastive


class FlavaLosses(nn.Module):
    """``transformers.FlavaModel`` with its global contrastive loss and one over whether image and text match.

    Capture refuses ``FlavaForPreTraining``: it writes in place through views of its labels.
    """

    def __init__(self, config: Any) -> None:
        from transformers import FlavaModel

        super().__init__()
        self.flava = FlavaModel(config)
        self.match_head = nn.Linear(config.hidden_size, 2)

    def forward(self, labels: Tensor, **batch: Tensor) -> dict[str, Tensor]:
        """Loss for what the model takes, and ``labels``: 1 where image and text match, else 0."""
        found = self.flava(**batch)
        image = functional.normalize(self.flava.image_projection(found.image_embeddings[:, 0]), dim=-1)
        text = functional.normalize(self.flava.text_projection(found.text_embeddings[:, 0]), dim=-1)
        matching = functional.cross_entropy(self.match_head(found.multimodal_embeddings[:, 0]), labels)
        return {"loss": contrastive(self.flava.logit_scale.exp() * (image @ text.T)) + matching}


def flava(
    *, width: int = 32, layers: tuple[int, int, int] = (2, 2, 2), image: int = 16, words: int = 8,
    vocabulary: int = 99, samples: int = 4,
) -> Example:  # fmt: skip
    """FlavaLosses with encoders of (image, text, both) so many ``layers``, and a batch."""
    from transformers import FlavaConfig

    shared = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
    config = FlavaConfig(
        image_config={**shared, "num_hidden_layers": layers[0], "image_size": image, "patch_size": 8},
        text_config={
            **shared,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
        },
        multimodal_config={**shared, "num_hidden_layers": layers[2]},
        hidden_size=width,
        projection_dim=width,
    )
    batch = {
        "input_ids": torch.randint(1, vocabulary, (samples, words)),
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "pixel_values": torch.randn(samples, 3, image, image),
        "labels": torch.arange(samples) % 2,
    }
    return FlavaLosses(config).train(), batch

"""Vision models of one branch, by ``transformers`` with small random configurations."""

import torch

from plait.model.zoo.example import Example


def vit(
    *, width: int = 32, layers: int = 2, image: int = 16, patch: int = 4, classes: int = 5, samples: int = 4,
    dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.ViTForImageClassification`` of square images of ``image`` pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        image_size=image,
        patch_size=patch,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        id2label={i: str(i) for i in range(classes)},
    )
    batch = {"pixel_values": torch.randn(samples, 3, image, image), "labels": torch.randint(0, classes, (samples,))}
    return ViTForImageClassification(config).train(), batch

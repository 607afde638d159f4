"""Towers that meet in their loss: CLIP and its kin, by ``transformers`` with small random configurations."""

import torch

from plait.model.zoo.example import Example


def clip(
    *, width: int = 64, layers: tuple[int, int] = (2, 2), image: int = 16, patch: int = 4, words: int = 8,
    vocabulary: int = 99, samples: int = 4, dropout: float = 0.0,
) -> Example:  # fmt: skip
    """``transformers.CLIPModel`` with (image, text) towers of ``layers`` blocks; square images of ``image`` pixels."""
    from transformers import CLIPConfig, CLIPModel

    shared = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": 4,
        "attention_dropout": dropout,
    }
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = CLIPConfig(
        text_config={
            **shared,
            **tokens,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
        },
        vision_config={**shared, "num_hidden_layers": layers[0], "image_size": image, "patch_size": patch},
        projection_dim=width,
    )
    batch = {
        "input_ids": torch.randint(3, vocabulary, (samples, words)),
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "pixel_values": torch.randn(samples, 3, image, image),
    }
    return CLIPModel(config).train(), batch

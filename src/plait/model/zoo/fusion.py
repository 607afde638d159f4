"""Models whose branches meet inside the network, by ``transformers`` with small random configurations."""

from typing import Any

import torch

from plait.model.zoo.example import Example, image_and_text


def _bridge_tower(width: int, layers: int, cross: int, image: int, vocabulary: int, dropout: float) -> Any:
    from transformers import BridgeTowerConfig

    text = {
        "hidden_size": width,
        "num_attention_heads": 2,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    config = BridgeTowerConfig(
        hidden_size=width,
        num_attention_heads=2,
        num_hidden_layers=cross,
        text_config=text,
        vision_config={"hidden_size": width, "num_hidden_layers": layers, "image_size": image, "patch_size": 8},
    )
    config.contrastive_hidden_size = width
    config.logit_scale_init_value = 2.6592
    return config


def bridge_tower(
    *, width: int = 64, layers: int = 3, cross: int = 2, image: int = 16, words: int = 8, vocabulary: int = 99,
    samples: int = 4, dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.BridgeTowerForImageAndTextRetrieval``: cross-modal layers read the ``cross`` last of each tower.

    Its loss is a cross-entropy over whether image and text match.
    """
    from transformers import BridgeTowerForImageAndTextRetrieval

    config = _bridge_tower(width, layers, cross, image, vocabulary, dropout)
    batch = image_and_text(samples, image, words, vocabulary)
    batch["labels"] = torch.arange(samples) % 2
    return BridgeTowerForImageAndTextRetrieval(config).train(), batch


def bridge_tower_contrastive(
    *, width: int = 64, layers: int = 3, cross: int = 2, image: int = 16, words: int = 8, vocabulary: int = 99,
    samples: int = 4, dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.BridgeTowerForContrastiveLearning``: text, image and fused embeddings against each other."""
    from transformers import BridgeTowerForContrastiveLearning

    config = _bridge_tower(width, layers, cross, image, vocabulary, dropout)
    return BridgeTowerForContrastiveLearning(config).train(), image_and_text(samples, image, words, vocabulary)


def blip_captioning(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), image: int = 16, words: int = 8, vocabulary: int = 50,
    samples: int = 4,
) -> Example:  # fmt: skip
    """``transformers.BlipForConditionalGeneration``: every text layer cross-attends to the image; a token mean."""
    from transformers import BlipForConditionalGeneration

    batch = image_and_text(samples, image, words, vocabulary)
    batch["labels"] = batch["input_ids"].clone()
    return BlipForConditionalGeneration(_blip(width, layers, image, words, vocabulary)).train(), batch


def blip(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), image: int = 16, words: int = 8, vocabulary: int = 50,
    samples: int = 4,
) -> Example:  # fmt: skip
    """``transformers.BlipModel``: two towers that meet in a contrastive loss."""
    from transformers import BlipModel

    batch = image_and_text(samples, image, words, vocabulary)
    return BlipModel(_blip(width, layers, image, words, vocabulary)).train(), batch


def _blip(width: int, layers: tuple[int, int], image: int, words: int, vocabulary: int) -> Any:
    from transformers import BlipConfig

    shared = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
    return BlipConfig(
        text_config={
            **shared,
            "encoder_hidden_size": width,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "sep_token_id": 2,
        },
        vision_config={**shared, "num_hidden_layers": layers[0], "image_size": image, "patch_size": 8},
        projection_dim=width,
        image_text_hidden_size=width,
    )

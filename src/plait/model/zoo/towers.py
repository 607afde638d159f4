"""Towers that meet in their loss: CLIP and its kin, by ``transformers`` with small random configurations."""

from typing import Any

import torch

from plait.model.zoo.example import Example, image_and_text


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
    batch = image_and_text(samples, image, words, vocabulary)
    return CLIPModel(config).train(), batch


def siglip(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), image: int = 16, words: int = 8, vocabulary: int = 99,
    samples: int = 4,
) -> Example:  # fmt: skip
    """``transformers.SiglipModel``: the sigmoid loss over all pairs of the batch; its (image, text) towers pool."""
    from transformers import SiglipConfig, SiglipModel

    shared = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
    config = SiglipConfig(
        text_config={
            **shared,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        vision_config={**shared, "num_hidden_layers": layers[0], "image_size": image, "patch_size": 4},
    )
    batch = {
        "input_ids": torch.randint(3, vocabulary, (samples, words)),
        "pixel_values": torch.randn(samples, 3, image, image),
    }
    return SiglipModel(config).train(), batch


def chinese_clip(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), image: int = 16, words: int = 8, vocabulary: int = 99,
    samples: int = 4, dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.ChineseCLIPModel``: CLIP with a BERT as its text tower, of which the first token is the text."""
    from transformers import ChineseCLIPConfig, ChineseCLIPModel

    shared = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
    config = ChineseCLIPConfig(
        text_config={
            **shared,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        },
        vision_config={**shared, "num_hidden_layers": layers[0], "image_size": image, "patch_size": 4},
        projection_dim=width,
    )
    batch = image_and_text(samples, image, words, vocabulary, lowest=1)
    return ChineseCLIPModel(config).train(), batch


def dual_encoder(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), image: int = 16, words: int = 8, vocabulary: int = 99,
    samples: int = 4, dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.VisionTextDualEncoderModel``: a ViT and a BERT put together, with CLIP's contrastive loss."""
    from transformers import BertConfig, VisionTextDualEncoderConfig, VisionTextDualEncoderModel, ViTConfig

    shared: dict[str, Any] = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2}
    shared |= {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        ViTConfig(**shared, num_hidden_layers=layers[0], image_size=image, patch_size=4),
        BertConfig(
            **shared, num_hidden_layers=layers[1], vocab_size=vocabulary, max_position_embeddings=words, pad_token_id=0
        ),
        projection_dim=width,
    )
    batch = image_and_text(samples, image, words, vocabulary, lowest=1)
    return VisionTextDualEncoderModel(config).train(), batch


def clap(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), words: int = 8, vocabulary: int = 99, samples: int = 4,
    dropout: float = 0.1,
) -> Example:  # fmt: skip
    """``transformers.ClapModel`` without fusion of long clips; the audio tower begins with a norm over the batch."""
    from transformers import ClapConfig, ClapModel

    without = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = ClapConfig(
        text_config={
            **without,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_attention_heads": 2,
            "num_hidden_layers": layers[1],
            "vocab_size": vocabulary,
            "max_position_embeddings": words + 2,
            "projection_dim": width,
        },
        audio_config={
            **without,
            "window_size": 2,
            "num_mel_bins": 16,
            "spec_size": 32,
            "depths": [1] * layers[0],
            "num_attention_heads": [2] * layers[0],
            "num_hidden_layers": layers[0],
            "patch_embeds_hidden_size": width >> (layers[0] - 1),
            "hidden_size": width,
            "projection_dim": width,
        },
        projection_dim=width,
    )
    batch = {
        "input_ids": torch.randint(3, vocabulary, (samples, words)),
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "input_features": torch.randn(samples, 1, 64, 16),
    }
    return ClapModel(config).train(), batch

"""Language models that attend to an image every few layers, by ``transformers`` with small random configurations."""

import torch

from plait.model.zoo.example import Example


def mllama(*, width: int = 32, layers: int = 4, words: int = 8, vocabulary: int = 50, samples: int = 4) -> Example:
    """``transformers.MllamaForConditionalGeneration``: every other layer of its text attends to tiles of an image."""
    from transformers import MllamaConfig, MllamaForConditionalGeneration

    shared = {"hidden_size": width, "intermediate_size": 2 * width}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    tiles = 2
    config = MllamaConfig(
        vision_config={
            **shared,
            "attention_heads": 2,
            "num_hidden_layers": 3,
            "num_global_layers": 1,
            "intermediate_layers_indices": [1],
            "vision_output_dim": 2 * width,  # the last layer's features beside those of layer 1
            "image_size": 16,
            "patch_size": 8,
            "max_num_tiles": tiles,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        text_config={
            **shared,
            **ends,
            "num_hidden_layers": layers,
            "cross_attention_layers": list(range(1, layers, 2)),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        image_token_index=vocabulary - 1,
    )
    tokens = torch.randint(3, vocabulary - 1, (samples, words))
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(samples, 1, tiles, 3, 16, 16),
        "aspect_ratio_ids": torch.full((samples, 1), 2),
        "aspect_ratio_mask": torch.ones(samples, 1, tiles, dtype=torch.long),
        "cross_attention_mask": torch.ones(samples, words, 1, tiles, dtype=torch.long),
        "labels": tokens.clone(),
    }
    return MllamaForConditionalGeneration(config).train(), batch


def idefics(
    *, width: int = 32, layers: int = 4, words: int = 8, vocabulary: int = 50, samples: int = 4, images: int = 2
) -> Example:
    """``transformers.IdeficsForVisionText2Text``, a Flamingo: frozen towers joined by what is trained.

    That is gated cross-attention before every other layer of the text, and a resampler of each image's patches.
    """
    from transformers import IdeficsConfig, IdeficsForVisionText2Text

    config = IdeficsConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        vocab_size=vocabulary,
        cross_layer_interval=2,
        alpha_initializer="ones",  # closed gates would leave the image without a gradient
        use_resampler=True,
        vision_config={
            "embed_dim": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        perceiver_config={
            "resampler_n_latents": 3,
            "resampler_depth": 2,
            "resampler_n_heads": 2,
            "resampler_head_dim": width // 2,
        },
    )
    tokens = torch.randint(3, vocabulary, (samples, words))
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.randn(samples, images, 3, 16, 16),
        "image_attention_mask": torch.ones(samples, words, images, dtype=torch.long),
        "labels": tokens.clone(),
    }
    model = IdeficsForVisionText2Text(config).train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "resampler" in name or "cross_attn" in name
    return model, batch

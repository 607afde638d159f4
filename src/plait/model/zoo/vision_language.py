"""Vision towers whose features a language model reads, by ``transformers``."""

import torch

from plait.model.zoo.example import Example


def llava(*, width: int = 32, layers: int = 2, words: int = 8, vocabulary: int = 50, samples: int = 4) -> Example:
    """``transformers.LlavaForConditionalGeneration``: a vision tower whose patches stand among a text's tokens."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    shared = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": layers}
    image_token, patches = vocabulary - 1, 4
    config = LlavaConfig(
        vision_config={
            **shared,
            "model_type": "clip_vision_model",
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
        text_config={
            **shared,
            "model_type": "llama",
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "vocab_size": vocabulary,
            "max_position_embeddings": words,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        image_token_index=image_token,
        vision_feature_layer=-1,
    )
    tokens = torch.randint(3, image_token, (samples, words))
    labels = tokens.clone()
    tokens[:, :patches], labels[:, :patches] = image_token, -100
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "pixel_values": torch.randn(samples, 3, 16, 16),
        "labels": labels,
    }
    return LlavaForConditionalGeneration(config).train(), batch

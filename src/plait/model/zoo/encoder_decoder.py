"""Encoders whose output every decoder layer reads, by ``transformers`` with small random configurations."""

import torch

from plait.model.zoo.example import Example


def t5(*, width: int = 32, layers: int = 2, words: int = 8, vocabulary: int = 50, samples: int = 4) -> Example:
    """``transformers.T5ForConditionalGeneration``: an encoder that every decoder layer reads."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=width,
        d_kv=width // 2,
        d_ff=2 * width,
        num_layers=layers,
        num_heads=2,
        vocab_size=vocabulary,
        dropout_rate=0.0,
    )
    config.decoder_start_token_id = 0
    batch = {
        "input_ids": torch.randint(2, vocabulary, (samples, words)),
        "attention_mask": torch.ones(samples, words, dtype=torch.long),
        "labels": torch.randint(2, vocabulary, (samples, words - 2)),
    }
    return T5ForConditionalGeneration(config).train(), batch


def whisper(
    *, width: int = 32, layers: tuple[int, int] = (2, 2), frames: int = 32, words: int = 6,
    vocabulary: int = 50, samples: int = 4, dropout: float = 0.1, layerdrop: float = 0.0,
) -> Example:  # fmt: skip
    """``transformers.WhisperForConditionalGeneration`` of (encoder, decoder) layers, fixed positions in the encoder."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    bins = 16
    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        num_mel_bins=bins,
        max_source_positions=frames // 2,  # a convolution of stride two comes first
        max_target_positions=words,
        vocab_size=vocabulary,
        dropout=dropout,
        encoder_layerdrop=layerdrop,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    batch = {
        "input_features": torch.randn(samples, bins, frames),
        "labels": torch.randint(3, vocabulary, (samples, words)),
    }
    return WhisperForConditionalGeneration(config).train(), batch

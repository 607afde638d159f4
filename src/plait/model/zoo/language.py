"""Language models of one branch, and encoders with a decoder, by ``transformers``."""

import torch

from plait.model.zoo.example import Example


def gpt2(
    *, width: int = 32, layers: int = 2, words: int = 8, vocabulary: int = 50, samples: int = 4, dropout: float = 0.1
) -> Example:
    """``transformers.GPT2LMHeadModel`` with tied embeddings and a token-mean loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width,
        n_layer=layers,
        n_head=2,
        vocab_size=vocabulary,
        n_positions=words,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    config.loss_type = "ForCausalLM"
    tokens = torch.randint(0, vocabulary, (samples, words))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens.clone()}


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

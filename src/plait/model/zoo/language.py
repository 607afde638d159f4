"""Language models of one branch, by ``transformers`` with small random configurations."""

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


def llama(*, width: int = 32, layers: int = 2, words: int = 8, vocabulary: int = 50, samples: int = 4) -> Example:
    """``transformers.LlamaForCausalLM``: rotated positions, grouped heads, a head of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=words,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    tokens = torch.randint(3, vocabulary, (samples, words))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
    return LlamaForCausalLM(config).train(), batch


def bert(
    *, width: int = 32, layers: int = 2, words: int = 8, vocabulary: int = 50, samples: int = 4, dropout: float = 0.1
) -> Example:
    """``transformers.BertForPreTraining``: masked words and the next sentence, two losses over one encoder."""
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=words,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    tokens = torch.randint(3, vocabulary, (samples, words))
    batch = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "token_type_ids": (torch.arange(words) >= words // 2).long().repeat(samples, 1),
        "labels": torch.where(torch.arange(words) % 3 == 0, tokens, -100),
        "next_sentence_label": torch.randint(0, 2, (samples,)),
    }
    return BertForPreTraining(config).train(), batch

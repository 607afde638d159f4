"""Small models with random weights and an example batch each, for tests, demo and benchmarks."""

import torch
from torch import Tensor, nn
from torch.nn import functional

Example = tuple[nn.Module, dict[str, Tensor]]


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


class TwoTowers(nn.Module):
    """Two towers of linear layers, fused by a head, with a mean squared error over samples."""

    def __init__(self, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        self.left = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.right = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(2 * width, width)

    def forward(self, left: Tensor, right: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Prediction and loss; all tensors ``samples × width``."""
        for one, two in zip(self.left, self.right, strict=True):
            left, right = torch.relu(one(left)), torch.tanh(two(right))
        prediction = self.head(torch.cat([left, right], dim=-1))
        return {"loss": functional.mse_loss(prediction, target), "prediction": prediction}


class Residual(nn.Module):
    """A chain whose first value is added again at its end, so that it spans every cut; the loss is a scalar."""

    def __init__(self, width: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean absolute error of ``x`` (samples × width) after the chain against ``y``."""
        first = hidden = self.layers[0](x)
        for layer in self.layers[1:]:
            hidden = functional.dropout(torch.relu(layer(hidden)), 0.1, self.training) * self.scale
        loss: Tensor = (hidden + first - y).abs().mean()
        return loss


class Siamese(nn.Module):
    """One tower called for both inputs (shared weights), and a loss over the matrix of all pairs in the batch."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tower = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def _embed(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = torch.tanh(layer(x))
        return functional.normalize(x, dim=-1)

    def forward(self, one: Tensor, two: Tensor) -> dict[str, Tensor]:
        """Contrastive loss of pairs; both ``samples × width``."""
        first, second = self._embed(one), self._embed(two)
        scores = first @ second.T * self.temperature.exp()
        return {"loss": functional.cross_entropy(scores, torch.arange(len(one))), "first": first}


def two_towers(samples: int = 4, width: int = 16) -> Example:
    """TwoTowers with a batch."""
    return TwoTowers(width), {n: torch.randn(samples, width) for n in ("left", "right", "target")}


def residual(samples: int = 4, width: int = 16) -> Example:
    """Residual with a batch."""
    return Residual(width), {n: torch.randn(samples, width) for n in ("x", "y")}


def siamese(samples: int = 4, width: int = 16) -> Example:
    """Siamese with a batch."""
    return Siamese(width), {n: torch.randn(samples, width) for n in ("one", "two")}

"""Models with adapters by ``peft``: the model itself is frozen, a few small matrices beside its own learn."""

from plait.model.zoo.example import Example
from plait.model.zoo.language import gpt2
from plait.model.zoo.towers import clip


def gpt2_lora(*, samples: int = 4, layers: int = 2, rank: int = 2) -> Example:
    """GPT-2 with LoRA on its attention."""
    return _adapted(gpt2(samples=samples, layers=layers, dropout=0.0), ["c_attn"], rank, transposed=True)


def clip_lora(*, samples: int = 4, layers: tuple[int, int] = (2, 2), rank: int = 2) -> Example:
    """CLIP with LoRA on queries and values of both towers, and a projection that learns whole."""
    return _adapted(clip(width=32, samples=samples, layers=layers), ["q_proj", "v_proj"], rank, ["text_projection"])


def _adapted(
    example: Example, targets: list[str], rank: int, whole: list[str] | None = None, *, transposed: bool = False
) -> Example:
    from peft import LoraConfig, get_peft_model
    from transformers import PreTrainedModel

    model, batch = example
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"adapters are put into models of transformers, not into {type(model).__name__}")
    # Adapters usually begin at zero, which hides half of their gradients; these begin at random.
    config = LoraConfig(
        r=rank, target_modules=targets, init_lora_weights=False, modules_to_save=whole, fan_in_fan_out=transposed
    )
    return get_peft_model(model, config).train(), batch

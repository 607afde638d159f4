"""Models of which a part is frozen, as they are often trained."""

from plait.model.zoo.example import Example
from plait.model.zoo.towers import clip
from plait.model.zoo.vision_language import llava


def clip_frozen_vision(*, samples: int = 4, dropout: float = 0.0, layers: tuple[int, int] = (2, 2)) -> Example:
    """CLIP with its image tower locked, so that the text tower learns to read it (LiT)."""
    model, batch = clip(width=32, layers=layers, samples=samples, dropout=dropout)
    model.get_submodule("vision_model").requires_grad_(False)
    return model, batch


def llava_projector(*, samples: int = 4) -> Example:
    """LLaVA's first phase: the vision tower and the language model are frozen, the projector between them learns."""
    model, batch = llava(samples=samples)
    model.requires_grad_(False)
    model.get_submodule("model.multi_modal_projector").requires_grad_(True)
    return model, batch

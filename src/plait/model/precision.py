"""In which precision a model computes, and in which its weights are kept."""

from enum import StrEnum

from plait.errors import CaptureError


class Precision(StrEnum):
    """Of a graph, and so of plans for it and of the engine that runs them."""

    FP32 = "fp32"
    """The model's own dtypes: 32 bits, if it has no others."""
    BF16 = "bf16"
    """Parameters and gradients as they are; the forward under ``torch.autocast`` in bfloat16."""
    BF16_PARAMS = "bf16-params"
    """All in bfloat16, as by ``model.to(torch.bfloat16)``; the optimizer has master weights and gradients in fp32."""

    @property
    def half(self) -> bool:
        """Whether matrix products are in bfloat16."""
        return self is not Precision.FP32


def precision_of(name: str) -> Precision:
    """The precision of this name; raises CaptureError."""
    try:
        return Precision(name)
    except ValueError:
        raise CaptureError(f"precision: {name!r} is not known; it can be {', '.join(Precision)}") from None

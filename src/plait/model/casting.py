"""What a precision means to tensors: which are cast, and how a forward runs."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from plait.model.graph import TensorSpec
from plait.model.precision import Precision


def running(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward on ``device``."""
    return torch.autocast(device.type, torch.bfloat16) if precision is Precision.BF16 else contextlib.nullcontext()


def weights_dtype(precision: Precision, own: torch.dtype) -> torch.dtype:
    """What a parameter, a buffer or an input is cast to that has ``own`` dtype."""
    casts = precision is Precision.BF16_PARAMS and own.is_floating_point
    return torch.bfloat16 if casts else own


def cast_specs(precision: Precision, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The forms of data inputs as the layers see them."""
    return {
        name: spec.model_copy(update={"dtype": str(weights_dtype(precision, getattr(torch, spec.dtype)))[6:]})
        for name, spec in specs.items()
    }


def cast_inputs(precision: Precision, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Data inputs as the layers see them."""
    return {name: tensor.to(weights_dtype(precision, tensor.dtype)) for name, tensor in values.items()}


def cast_weights(precision: Precision, model: nn.Module) -> None:
    """Cast the model's parameters and buffers; each stays the object that it is."""
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = weights_dtype(precision, tensor.dtype)
        if dtype != tensor.dtype:
            tensor.data = tensor.data.to(dtype)


def widened(tensor: Tensor) -> Tensor:
    """In fp32 where it is in bfloat16, which NumPy and others don't know."""
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor


@contextlib.contextmanager
def weights_cast(precision: Precision, model: nn.Module) -> Iterator[None]:
    """The model with its weights cast; afterwards it has its own again."""
    own = [(tensor, tensor.data) for tensor in (*model.parameters(), *model.buffers())]
    cast_weights(precision, model)
    try:
        yield
    finally:
        for tensor, data in own:
            tensor.data = data

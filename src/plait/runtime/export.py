"""Final weights as ``from_pretrained`` reads them."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from plait.errors import FileError
from plait.runtime.parts import Parts
from plait.runtime.weights import SINGLE


def save_pretrained(
    folder: str | Path, model: nn.Module, parts: Parts, rank: int, ranks: int, device: torch.device
) -> None:
    """Write ``folder/model.safetensors`` and the model's config from rank 0; every rank must call it.

    A tied parameter is written once, under its first name. Of a model with adapters by ``peft`` the adapters are
    written, as ``PeftModel.from_pretrained`` reads them.
    """
    tensors = _gathered(model, parts, rank, ranks, device)
    if rank == 0:
        root = Path(folder)
        try:
            root.mkdir(parents=True, exist_ok=True)
            if is_adapted(model):
                _save_adapters(root, model, tensors)
            else:
                _save_model(root, model, tensors)
        except OSError as error:
            raise FileError(f"{root}: cannot write the weights: {error.strerror or error}") from None
    if ranks > 1:
        dist.barrier()


def is_adapted(model: nn.Module) -> bool:
    """Whether it is a model with adapters by ``peft``."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def _save_adapters(root: Path, model: Any, tensors: Mapping[str, Tensor]) -> None:
    # Whether embeddings are saved too follows from the adapters alone; "auto" would ask the network.
    model.save_pretrained(str(root), state_dict=dict(tensors), save_embedding_layers=False)


def _save_model(root: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    handle, temporary = tempfile.mkstemp(dir=root, suffix=".writing")
    os.close(handle)
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, root / SINGLE)
    save_config = getattr(getattr(model, "config", None), "save_pretrained", None)
    if save_config is not None:
        save_config(root)


def _gathered(model: nn.Module, parts: Parts, rank: int, ranks: int, device: torch.device) -> dict[str, Tensor]:
    """All tensors on rank 0's CPU, one after the other from the lowest rank that holds each."""
    own = parts.tensors
    found: dict[str, Tensor] = {}
    shapes = {n: (tuple(t.shape), t.dtype) for n, t in (*model.named_parameters(), *model.named_buffers())}
    for name, owner in sorted(parts.owners.items()):
        if rank == 0 and owner == 0:
            if name in own:
                found[name] = own[name].detach().cpu().contiguous()
        elif rank == 0:
            shape, dtype = shapes[name]
            buffer = torch.empty(shape, dtype=dtype, device=device)
            dist.recv(buffer, owner)
            found[name] = buffer.cpu()
        elif rank == owner and ranks > 1:
            dist.send(own[name].detach().contiguous(), 0)
    return found

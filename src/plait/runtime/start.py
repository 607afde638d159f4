"""How a rank's tensors begin: memory for its own alone, filled from files or as the model's code initialises them."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from plait.model.deferred import deferred_values, like_parameter
from plait.runtime.weights import load

if TYPE_CHECKING:
    from plait.runtime.parts import Parts

Store = dict[str, nn.Parameter | None] | dict[str, Tensor | None]


def materialise(
    model: nn.Module, names: Collection[str], canonical: Mapping[str, str], device: torch.device
) -> dict[str, Tensor]:
    """Give the parameters and buffers ``names`` that are on the meta device unfilled memory on ``device``.

    Names, those of the result too, are canonical ones. What is one tensor under several names stays one.
    """
    made: dict[str, Tensor] = {}
    for full, store, leaf in list(_places(model)):
        name, tensor = canonical.get(full, full), store[leaf]
        if tensor is not None and tensor.is_meta and name in names:
            if name not in made:
                made[name] = like_parameter(tensor, torch.empty_like(tensor, device=device))
            store[leaf] = made[name]  # type: ignore[assignment]
    return made


def _places(model: nn.Module) -> Iterator[tuple[str, Store, str]]:
    """(name, its module's store, name there) of every parameter and buffer."""
    for path, module in model.named_modules():
        for store in (module._parameters, module._buffers):  # noqa: SLF001
            for leaf in store:
                yield f"{path}.{leaf}" if path else leaf, store, leaf


def fill(model: nn.Module, parts: "Parts", weights: str | Path | None, canonical: Mapping[str, str]) -> None:
    """Give this rank's tensors their first values: from ``weights``, or else as ``deferred`` recorded them.

    Raises CheckpointError or FileError for weights that do not suit, CaptureError for a tensor without values.
    """
    read = parts.tensors if weights is not None else {}
    if weights is not None:
        load(weights, read, canonical, tell=parts.first)
    known = {canonical.get(name, name) for name in read}
    rest = {name: tensor for name, tensor in parts.made.items() if name not in known}

    def copy(name: str, value: Tensor) -> None:
        rest[name].copy_(value)

    with torch.no_grad():
        deferred_values(model, {name: name for name in rest}, copy)

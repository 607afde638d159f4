"""Bytes that autograd holds for a backward, counted once per kind of action, since counting costs time."""

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def count_held(run: Callable[[], T], parameters: Iterable[Tensor]) -> tuple[T, int]:
    """The result of ``run`` and the bytes of the tensors that it saved for the backward, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in parameters}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return result, sum(seen.values())

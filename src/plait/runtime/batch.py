"""The global batch: checked against the plan and cut into micro-batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from plait.errors import RunError
from plait.model.graph import TensorSpec
from plait.schedule.action import ALL


class Batch:
    """The data inputs of a global batch on this rank's device; micro-batch m has the next ``micro_batches[m]``."""

    def __init__(
        self, batch: Mapping[str, Any], specs: Mapping[str, TensorSpec], micro_batches: Sequence[int],
        device: torch.device,
    ) -> None:  # fmt: skip
        check(batch, specs, sum(micro_batches))
        self._device = device
        self._specs = specs
        self._whole = {name: batch[name] for name in specs}
        self._sizes = list(micro_batches)
        self._cache: dict[int, dict[str, Tensor]] = {}

    def __call__(self, micro_batch: int) -> Mapping[str, Tensor]:
        """Inputs of a micro-batch, or of the whole batch for ALL."""
        if micro_batch not in self._cache:
            self._cache[micro_batch] = {n: self._slice(n, t, micro_batch) for n, t in self._whole.items()}
        return self._cache[micro_batch]

    def _slice(self, name: str, tensor: Tensor, micro_batch: int) -> Tensor:
        dim = self._specs[name].batch_dim
        if dim is not None and micro_batch != ALL:
            tensor = tensor.narrow(dim, sum(self._sizes[:micro_batch]), self._sizes[micro_batch])
        return tensor.to(self._device, non_blocking=True)


def samples_of(batch: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> int:
    """How many samples a batch holds; raises RunError where an input is missing or its tensors disagree."""
    found: dict[str, int] = {}
    for name, spec in specs.items():
        tensor = batch.get(name)
        if tensor is None:
            raise RunError(f"batch: the input {name!r} is missing; it has {', '.join(sorted(batch)) or 'nothing'}")
        if not isinstance(tensor, Tensor):
            raise RunError(f"batch: the input {name!r} is of type {type(tensor).__name__}; it must be a tensor")
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
            raise RunError(f"batch: {name} is {tensor.type()}; it must be an ordinary tensor with numbers")
        if spec.batch_dim is not None and tensor.dim() > spec.batch_dim:
            found[name] = tensor.shape[spec.batch_dim]
    if len(set(found.values())) > 1:
        raise RunError(f"batch: its tensors hold different numbers of samples: {found}")
    return next(iter(found.values()), 0)


def check(batch: Mapping[str, Any], specs: Mapping[str, TensorSpec], samples: int) -> None:
    """Raise RunError unless the batch has every input in the plan's form, over ``samples`` samples."""
    given = samples_of(batch, specs)
    if given != samples:
        raise RunError(f"batch: it holds {given} samples, but the plan's micro-batches are {samples} samples in all")
    for name, spec in specs.items():
        tensor = batch[name]
        if tuple(tensor.shape) != spec.shape_for(samples):
            raise RunError(
                f"batch: {name} has shape {tuple(tensor.shape)}, the plan is for {spec.shape_for(samples)}; "
                "plan again for another shape"
            )
        if str(tensor.dtype) != f"torch.{spec.dtype}":
            raise RunError(f"batch: {name} is {tensor.dtype}, the plan is for {spec.dtype}")


def divided(samples: int, like: Sequence[int]) -> tuple[int, ...]:
    """Sizes of micro-batches for a batch of another size: as many as ``like``, or fewer, as equal as can be."""
    count = min(len(like), samples)
    share, rest = divmod(samples, count)
    return tuple(share + (m < rest) for m in range(count))

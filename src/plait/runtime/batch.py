"""The global batch: checked against the plan and cut into micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from plait.errors import RunError
from plait.model.graph import TensorSpec
from plait.schedule.action import ALL


@dataclass(frozen=True)
class Portion:
    """What one rank reads of a global batch of ``samples`` samples: those at ``positions``, which ascend."""

    samples: int
    positions: Sequence[int]
    inputs: Mapping[str, Any]
    """Of these samples, in this order; whatever where there are none."""


def portion_of(batch: "Mapping[str, Any] | Portion", specs: Mapping[str, TensorSpec]) -> Portion:
    """A whole batch is a portion as well; raises RunError where an input is missing or the tensors disagree."""
    if not isinstance(batch, Portion):
        samples = samples_of(batch, specs)
        return Portion(samples, range(samples), batch)
    if not batch.positions:
        return Portion(batch.samples, (), {})
    given = samples_of(batch.inputs, specs)
    if given != len(batch.positions):
        raise RunError(f"batch: it holds {given} samples, but {len(batch.positions)} were to be read")
    return batch


class Batch:
    """The data inputs of a global batch on this rank's device; micro-batch m has the next ``micro_batches[m]``.

    Of a micro-batch that this rank does not read there are none.
    """

    def __init__(
        self, portion: Portion, specs: Mapping[str, TensorSpec], micro_batches: Sequence[int], device: torch.device
    ) -> None:
        check(portion, specs, sum(micro_batches))
        self._device = device
        self._specs = specs
        self._given = {name: portion.inputs[name] for name in specs} if portion.positions else {}
        self._places = {position: row for row, position in enumerate(portion.positions)}
        self._starts = list(accumulate(micro_batches, initial=0))
        self._cache: dict[int, dict[str, Tensor]] = {}

    def __call__(self, micro_batch: int) -> Mapping[str, Tensor]:
        """Inputs of a micro-batch, or of the whole batch for ALL."""
        if micro_batch not in self._cache:
            self._cache[micro_batch] = self._slices(micro_batch)
        return self._cache[micro_batch]

    def _slices(self, micro_batch: int) -> dict[str, Tensor]:
        whole = micro_batch == ALL
        first, end = (0, self._starts[-1]) if whole else self._starts[micro_batch : micro_batch + 2]
        if any(position not in self._places for position in range(first, end)):
            return {}
        return {n: self._slice(n, t, self._places[first], end - first) for n, t in self._given.items()}

    def _slice(self, name: str, tensor: Tensor, row: int, count: int) -> Tensor:
        dim = self._specs[name].batch_dim
        if dim is not None:
            tensor = tensor.narrow(dim, row, count)
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


def check(portion: Portion, specs: Mapping[str, TensorSpec], samples: int) -> None:
    """Raise RunError unless it is of ``samples`` samples and has every input in the plan's form."""
    if portion.samples != samples:
        raise RunError(
            f"batch: it holds {portion.samples} samples, but the plan's micro-batches are {samples} samples in all"
        )
    for name, spec in specs.items() if portion.positions else ():
        _check_form(name, portion.inputs[name], spec, len(portion.positions))


def _check_form(name: str, tensor: Tensor, spec: TensorSpec, samples: int) -> None:
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

"""Batches of other lengths than planned, filled up as the user chose."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional

from plait.errors import RunError
from plait.model.graph import TensorSpec
from plait.plan.lengths import Lengths

ALONG = 1
"""The dimension of the length."""


def planned(example: Mapping[str, Any], lengths: Lengths) -> dict[str, Any]:
    """The example batch with the lengths to plan for; raises RunError for one that is too long."""
    sizes = {n: example[n].shape[ALONG] for n in lengths.pad if n in example and example[n].dim() > ALONG}
    filled = dict(example)
    for name, size in sizes.items():
        wanted = lengths.length or -(-size // (lengths.multiple_of or 1)) * (lengths.multiple_of or 1)
        if size > wanted:
            raise RunError(f"batch: {name} is {size} long, lengths.length is {wanted}; cut the samples, or raise it")
        filled[name] = _to(wanted, example[name], lengths.pad[name])
    return filled


def padded(batch: Mapping[str, Any], specs: Mapping[str, TensorSpec], lengths: Lengths) -> dict[str, Any]:
    """The batch with each input that ``lengths.pad`` names filled up; raises RunError for one that is too long."""
    return dict(batch) | {name: _filled(name, batch, specs, lengths) for name in lengths.pad if name in batch}


def _filled(name: str, batch: Mapping[str, Any], specs: Mapping[str, TensorSpec], lengths: Lengths) -> Any:
    tensor = batch[name]
    if name not in specs or not isinstance(tensor, Tensor):
        return tensor
    if tensor.dim() <= ALONG:
        raise RunError(f"lengths.pad: {name} has shape {tuple(tensor.shape)}: there is no second dimension to fill up")
    length, planned = tensor.shape[ALONG], specs[name].shape[ALONG]
    wanted = planned if lengths.multiple_of is None else -(-length // lengths.multiple_of) * lengths.multiple_of
    if length > wanted:
        raise RunError(
            f"batch: {name} is {length} long, planned is {wanted}; cut it, plan for the longest, or give "
            "lengths.multiple_of"
        )
    return _to(wanted, tensor, lengths.pad[name])


def _to(wanted: int, tensor: Tensor, value: float) -> Tensor:
    more = wanted - tensor.shape[ALONG]
    return functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - ALONG) + [0, more], value=value)


def form_of(batch: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    """The forms of the batch's inputs: as ``specs``, with the batch's own sizes in all but the batch dimension."""
    found = {}
    for name, spec in specs.items():
        tensor = batch[name]
        if tensor.dim() != len(spec.shape):
            raise RunError(f"batch: {name} has shape {tuple(tensor.shape)}, planned are {len(spec.shape)} dimensions")
        shape = tuple(
            planned if dim == spec.batch_dim else size
            for dim, (planned, size) in enumerate(zip(spec.shape, tensor.shape, strict=True))
        )
        found[name] = spec.model_copy(update={"shape": shape})
    return found

"""Entries: the operations of one export in a flat list, and loops over samples taken out of it."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from plait.model.tape import Kind, Ref

_aten = torch.ops.aten
_SPLITS = (_aten.split.Tensor, _aten.split.sizes, _aten.split_with_sizes.default, _aten.chunk.default)
_FILLS = {_aten.zeros_like.default: 0, _aten.ones_like.default: 1}


@dataclass
class Entry:
    """One operation or source; ``value`` is the fake result that export recorded."""

    name: str
    kind: Kind
    target: Any
    leaves: list[Any] = field(default_factory=list)
    spec: pytree.TreeSpec | None = None
    value: Any = None
    home: str = ""
    line: str = ""
    gradient: bool = True
    view_of: int | None = None

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Its (args, kwargs)."""
        if self.spec is None:
            return tuple(self.leaves), {}
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return tuple(args), dict(kwargs)


@dataclass
class Flat:
    """All entries in order; ``loss`` and ``outputs`` are numbers of entries."""

    entries: list[Entry]
    loss: int | None
    outputs: list[int]


def without_model(entry: Entry) -> tuple[Any, list[Any], pytree.TreeSpec] | None:
    """(target, leaves, spec) of an operation that takes a tensor for its shape alone, by that shape in numbers.

    So it need not wait for that tensor, and can be repeated wherever it is used. None for another entry.
    """
    args, _ = entry.arguments()
    if entry.target is _aten.expand_as.default:
        return _call(_aten.expand.default, args[0], list(entry.value.shape))
    if entry.target in (_aten.view_as.default, _aten.reshape_as.default):
        return _call(_aten.reshape.default, args[0], list(entry.value.shape))
    if entry.target not in _FILLS:
        return None
    value = entry.value
    leaves, spec = pytree.tree_flatten(
        ((list(value.shape), _FILLS[entry.target]), {"dtype": value.dtype, "device": value.device})
    )
    return _aten.full.default, leaves, spec


def without_broadcast(entry: Entry, before: Sequence[Entry]) -> tuple[Any, list[Any], pytree.TreeSpec] | None:
    """(target, leaves, spec) of one of several tensors broadcast together: it alone, expanded. None for another entry.

    Export takes a tensor that needs no broadcast for this result from then on: a loss's targets, wherever they are
    used again, would come from the layer of the first loss.
    """
    if (
        entry.target is not operator.getitem
        or before[entry.leaves[0].node].target is not _aten.broadcast_tensors.default
    ):
        return None
    args, _ = before[entry.leaves[0].node].arguments()
    return _call(_aten.expand.default, args[0][entry.leaves[1]], list(entry.value.shape))


def without_loop(entry: Entry, before: Sequence[Entry]) -> tuple[Any, list[Any], pytree.TreeSpec] | None:
    """(target, leaves, spec) of what a loop over samples amounts to: taken apart, put together again in full.

    Left as it is, such a loop has another length for each number of samples. None for another entry.
    """
    if entry.target not in (_aten.cat.default, _aten.stack.default):
        return None
    args, kwargs = entry.arguments()
    maker = _taken_apart(args[0], before)
    if maker is None or not isinstance(maker.leaves[0], Ref):
        return None
    dim, split_dim = kwargs.get("dim", (*args[1:], 0)[0]), _split_dim(maker)
    stacked, unbound = entry.target is _aten.stack.default, maker.target is _aten.unbind.int
    if dim != split_dim or (stacked and not unbound):
        return None
    if unbound and not stacked:
        return _call(_aten.flatten.using_ints, maker.leaves[0], 0, 1) if dim == 0 else None
    return _call(_aten.alias.default, maker.leaves[0])


def _taken_apart(items: Sequence[Any], before: Sequence[Entry]) -> Entry | None:
    """What gave ``items``, if they are all its results in order."""
    picked = [before[item.node] for item in items if isinstance(item, Ref)]
    if not picked or len(picked) < len(items) or any(p.target is not operator.getitem for p in picked):
        return None
    makers = {p.leaves[0].node for p in picked}
    maker = before[makers.pop()]
    if makers or maker.target not in (*_SPLITS, _aten.unbind.int):
        return None
    return maker if [p.leaves[1] for p in picked] == list(range(len(maker.value))) else None


def _split_dim(maker: Entry) -> int:
    args, kwargs = maker.arguments()
    position = 1 if maker.target is _aten.unbind.int else 2
    return int(kwargs.get("dim", (*args[position:], 0)[0]))


def _call(target: Any, *args: Any) -> tuple[Any, list[Any], pytree.TreeSpec]:
    leaves, spec = pytree.tree_flatten((args, {}))
    return target, leaves, spec

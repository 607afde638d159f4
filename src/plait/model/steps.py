"""Nodes of a tape as calls that run: the one interpreter behind stages, trials and counts."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from plait.errors import CaptureError
from plait.model.part import CallPart
from plait.model.tape import Context, Here, Kind, Line, Node, Ref, WhileTraining


class CallLayer:
    """Calls the user's own module; the result is the list of its tensors."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> list[Tensor]:
        """Its tensors for these arguments."""
        result = self.module(*args, **kwargs)
        if isinstance(result, Tensor):
            return [result]
        return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


class ReadTensor:
    """Reads a parameter or buffer where it lives, so that a replaced one is seen."""

    __slots__ = ("module", "name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> Tensor:
        """The tensor that is there now."""
        found: Tensor = getattr(self.module, self.name)
        return found


class KeepConstant:
    """A constant tensor, copied once to each device that asks for it."""

    __slots__ = ("tensors",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensors = {tensor.device: tensor}

    def __call__(self, device: torch.device) -> Tensor:
        """The constant on ``device``."""
        if device not in self.tensors:
            self.tensors[device] = next(iter(self.tensors.values())).to(device)
        return self.tensors[device]


class Step:
    """One node, ready to run: ``run(values, context)`` reads and writes ``values`` by node number."""

    __slots__ = ("_call", "_dynamic", "_gradient", "_keys", "_leaves", "_positional", "_refs", "_spec", "drop", "node")

    def __init__(self, node: Node, root: nn.Module) -> None:
        self.node = node
        self._call, leaves = _bind(node, root)
        self._leaves = [None if isinstance(x, (Ref, Line, Here, WhileTraining)) else x for x in leaves]
        self._refs = [(i, x.node) for i, x in enumerate(leaves) if isinstance(x, Ref)]
        self._dynamic = [(i, x) for i, x in enumerate(leaves) if isinstance(x, (Line, Here, WhileTraining))]
        self._spec = node.spec
        self._positional, self._keys = _flat(node, len(leaves))
        self._gradient = node.gradient
        self.drop: tuple[int, ...] = ()
        """Nodes whose values are not needed after this step."""

    def run(self, values: dict[int, Any], context: Context) -> Any:
        """Compute the node's value and store it."""
        leaves = self._leaves.copy()
        for position, number in self._refs:
            leaves[position] = values[number]
        for position, dynamic in self._dynamic:
            leaves[position] = dynamic.at(context)
        if self._gradient or not torch.is_grad_enabled():
            result = self._apply(leaves)
        else:
            with torch.no_grad():
                result = self._apply(leaves)
        values[self.node.number] = result
        for number in self.drop:
            del values[number]
        return result

    def _apply(self, leaves: list[Any]) -> Any:
        if self._positional is None and self._spec is not None:
            args, kwargs = pytree.tree_unflatten(leaves, self._spec)
            return self._call(*args, **kwargs)
        if not self._keys:
            return self._call(*leaves)
        split = self._positional
        return self._call(*leaves[:split], **dict(zip(self._keys, leaves[split:], strict=True)))


def _bind(node: Node, root: nn.Module) -> tuple[Any, Sequence[Any]]:
    if node.kind is Kind.OP:
        return node.target, node.leaves
    if node.kind is Kind.CALL:
        return CallLayer(find_module(root, node.target)), node.leaves
    if node.kind is Kind.PART:
        return CallPart(node.target, root), node.leaves
    if node.kind is Kind.CONSTANT:
        return KeepConstant(node.target), (Here(),)
    if node.kind is Kind.INPUT:
        raise CaptureError(f"the input {node.target} is given, not computed")
    path, _, name = node.target.rpartition(".")
    return ReadTensor(find_module(root, path), name), ()


def _flat(node: Node, count: int) -> tuple[int | None, tuple[str, ...]]:
    """How many leaves are positional and the names of the rest; (None, ()) where arguments are nested."""
    if node.spec is None:
        return count, ()
    args, kwargs = pytree.tree_unflatten(list(range(count)), node.spec)
    if all(isinstance(x, int) for x in (*args, *kwargs.values())):
        return len(args), tuple(kwargs)
    return None, ()


def release(steps: Sequence[Step], keep: set[int]) -> None:
    """Let each step drop the values that it is the last to need, except ``keep``."""
    last: dict[int, int] = {}
    for index, step in enumerate(steps):
        last[step.node.number] = index
        last.update(dict.fromkeys(step.node.arguments, index))
    for index, step in enumerate(steps):
        named = {step.node.number, *step.node.arguments}
        step.drop = tuple(sorted(n for n in named if last[n] == index and n not in keep))


def find_module(root: nn.Module, path: str) -> nn.Module:
    """The submodule at ``path``, also where its name is one of the root's own attributes."""
    for part in path.split(".") if path else ():
        found = root._modules.get(part)
        if found is None:
            raise CaptureError(f"no module {path!r}: {part!r} is missing")
        root = found
    return root


def batch_norms(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(path, norm) of each norm in ``module``, itself included, that takes its statistics over the batch."""
    for path, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            yield path, part


def home_of(model: nn.Module) -> torch.device:
    """The device of the model's parameters; the CPU where it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def is_item(node: Node) -> bool:
    """Whether it only picks one of several results."""
    return node.kind is Kind.OP and node.target is operator.getitem

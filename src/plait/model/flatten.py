"""An exported program as one flat list of pure operations.

Regions without gradients are inlined and marked; writes in place become new values, as compilers do it, so that
each entry's value never changes; assertions about tensor metadata are left out (nothing uses them).
"""

import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from plait.errors import CaptureError
from plait.model.entries import Entry, Flat, without_broadcast, without_loop, without_model
from plait.model.tape import Kind, Ref, WhileTraining
from plait.model.trace import HOLE, Export

_PREFIX = "model"
_SOURCES = {
    InputKind.PARAMETER: Kind.PARAMETER,
    InputKind.BUFFER: Kind.BUFFER,
    InputKind.CONSTANT_TENSOR: Kind.CONSTANT,
    InputKind.USER_INPUT: Kind.INPUT,
}
_SCATTER = {
    torch.ops.aten.select.int: torch.ops.aten.select_scatter.default,
    torch.ops.aten.slice.Tensor: torch.ops.aten.slice_scatter.default,
}


def flatten(export: Export, inputs: Sequence[str]) -> Flat:
    """The flat list of ``export``, whose batch has ``inputs`` in this order; raises CaptureError."""
    return _Flattener(export, inputs).run()


class _Flattener:
    def __init__(self, export: Export, inputs: Sequence[str]) -> None:
        self._export = export
        self._inputs = list(inputs)
        self._entries: list[Entry] = []
        self._newer: dict[int, int] = {}
        """Entry → the entry that holds its value after a write in place."""
        self._stale: dict[int, str] = {}
        """Views of what was since written to → the line of the write."""

    def run(self) -> Flat:
        program = self._export.program
        results = self._inline(program.graph_module, self._sources(), True)
        loss, *outputs = results
        return Flat(self._entries, None if loss is None else self._entry(loss), [self._entry(o) for o in outputs])

    def _entry(self, result: Any) -> int:
        if not isinstance(result, Ref):
            raise CaptureError(f"the loss or an output is the constant {result!r}: it depends on nothing")
        return result.node

    def _sources(self) -> list[Ref]:
        rest = iter(self._inputs)
        made: list[Ref] = []
        values = {n.name: n.meta.get("val") for n in self._export.program.graph.nodes if n.op == "placeholder"}
        for spec in self._export.program.graph_signature.input_specs:
            kind = _SOURCES.get(spec.kind)
            if kind is None:
                raise CaptureError(f"{spec.target}: a custom object takes part in the computation; use tensors")
            target: Any = spec.target
            if kind is Kind.INPUT:
                target = next(rest)
            elif kind is Kind.CONSTANT:
                target = self._export.program.constants[str(spec.target)]
            else:
                target = str(target).removeprefix(f"{_PREFIX}.")
            name = getattr(spec.arg, "name", "")
            made.append(self._add(Entry(name, kind, target, value=values.get(name))))
        return made

    def _add(self, entry: Entry) -> Ref:
        self._entries.append(entry)
        return Ref(len(self._entries) - 1)

    def _inline(self, module: fx.GraphModule, arguments: Sequence[Any], gradient: bool) -> Any:
        values: dict[fx.Node, Any] = {}
        rest = iter(arguments)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(rest)
            elif node.op == "get_attr":
                values[node] = getattr(module, str(node.target))
            elif node.op == "output":
                return self._resolve(node.args[0], values)
            else:
                values[node] = self._operation(node, values, gradient)
        raise CaptureError("an exported graph has no output")

    def _resolve(self, tree: Any, values: dict[fx.Node, Any]) -> Any:
        return fx.map_arg(tree, lambda n: self._current(values[n]))

    def _current(self, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        number = value.node
        while number in self._newer:
            number = self._newer[number]
        if number in self._stale:
            raise CaptureError(
                f"{self._stale[number]}: writes in place into a tensor of which a view ({self._entries[number].line}) "
                "is used afterwards; write it without changing it in place"
            )
        return Ref(number)

    def _operation(self, node: fx.Node, values: dict[fx.Node, Any], gradient: bool) -> Any:
        args, kwargs = self._resolve(node.args, values), self._resolve(node.kwargs, values)
        target = node.target
        if isinstance(target, torch._ops.HigherOrderOperator):
            return self._region(node, args, gradient)
        if target is operator.getitem and not isinstance(args[0], Ref):
            return args[0][args[1]]  # of an inlined region's results
        entry = Entry(node.name, Kind.OP, target, value=node.meta.get("val"), line=_line(node), gradient=gradient)
        stack = _stack(node)
        if target is torch.ops.plait.layer.default:
            call = self._export.calls[int(args[1])]
            entry.kind, entry.target, entry.spec = Kind.CALL, call.path, call.spec
            tensors = iter([None if i in call.unused else tensor for i, tensor in enumerate(args[0])])
            entry.leaves = [next(tensors) if leaf is HOLE else leaf for leaf in call.leaves]
            entry.home = stack[-2] if len(stack) > 1 else ""
            return self._add(entry)
        entry.home = stack[-1] if stack else ""
        args, kwargs = _by_mode(target, list(args), dict(kwargs))
        entry.leaves, entry.spec = pytree.tree_flatten((tuple(args), kwargs))
        return self._write(entry) if _writes(target) else self._pure(entry)

    def _pure(self, entry: Entry) -> Ref:
        before = self._entries
        simpler = without_loop(entry, before) or without_broadcast(entry, before) or without_model(entry)
        if simpler is not None:
            entry.target, entry.leaves, entry.spec = simpler
        if _is_view(entry.target) and isinstance(entry.leaves[0], Ref):
            entry.view_of = entry.leaves[0].node
        return self._add(entry)

    def _region(self, node: fx.Node, args: Sequence[Any], gradient: bool) -> Any:
        name = str(node.target)
        if name == "wrap_with_set_grad_enabled":
            return self._inline(args[1], args[2:], bool(args[0]) and gradient)
        if name == "wrap_with_autocast" and args[2] is False:
            return self._inline(args[4], args[5:], gradient)  # it guards against autocast, which plait leaves off
        raise CaptureError(f"{_line(node)}: {name} between layers is not supported; put it into a module")

    def _write(self, entry: Entry) -> Ref:
        """A write in place as a new value of what it changes, and of all that this is a view of."""
        changed = entry.leaves[0]
        root = self._root(changed.node)
        source = self._entries[root]
        if source.kind in (Kind.PARAMETER, Kind.BUFFER):
            raise CaptureError(
                f"{entry.line}: changes the {source.kind} {source.target} in place between layers; do it inside a "
                "module with parameters, or not while training"
            )
        entry.target = _functional(entry)
        new = self._add(entry)
        self._supersede(changed.node, new.node, entry)
        chain = {*self._newer, *self._newer.values()}
        for number in range(len(self._entries)):
            if number not in chain and number != new.node and self._root(number) == root:
                self._stale[number] = entry.line
        return new

    def _supersede(self, old: int, new: int, writer: Entry) -> None:
        parent = self._entries[old].view_of
        self._newer[old] = new
        if parent is None:
            return
        view = self._entries[old]
        scatter = _SCATTER.get(view.target)
        if scatter is None:
            raise CaptureError(
                f"{writer.line}: writes in place through the view {view.target} ({view.line}); write it without "
                "changing it in place"
            )
        (_, *rest), kwargs = view.arguments()
        leaves, spec = pytree.tree_flatten(((Ref(parent), Ref(new), *rest), kwargs))
        value = self._entries[parent].value
        made = self._add(Entry(f"{view.name}_scatter", Kind.OP, scatter, leaves, spec, value, view.home, writer.line))
        self._supersede(parent, made.node, writer)

    def _root(self, number: int) -> int:
        while (parent := self._entries[number].view_of) is not None:
            number = parent
        return number


def _by_mode(target: Any, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments with what follows ``.train()`` and ``.eval()`` marked: dropout must stop in evaluation."""
    if not isinstance(target, torch._ops.OpOverload):
        return args, kwargs
    for position, argument in enumerate(target._schema.arguments):
        holder: Any = args if position < len(args) else kwargs
        key: Any = position if position < len(args) else argument.name
        given = position < len(args) or argument.name in kwargs
        if given and argument.name in ("train", "training") and holder[key] is True:
            holder[key] = WhileTraining(True, False)
        if given and argument.name == "dropout_p" and holder[key] > 0:
            holder[key] = WhileTraining(holder[key], 0.0)
    return args, kwargs


def _writes(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _is_view(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.returns:
        return False
    alias = target._schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """What ``target.copy_(source)`` makes of ``target``; ATen's own ``copy`` has no derivative."""
    return source.to(target, non_blocking=non_blocking).expand_as(target).clone()


def zeroed(target: Tensor) -> Tensor:
    """What ``target.zero_()`` makes of ``target``; ATen's own ``zero`` has no derivative."""
    return torch.zeros_like(target)


_REPLACED = {torch.ops.aten.copy_.default: copied, torch.ops.aten.zero_.default: zeroed}


def _functional(entry: Entry) -> Any:
    """The operation that gives what ``entry``'s would write: ``aten.add`` for ``aten.add_``."""
    if entry.target in _REPLACED:
        return _REPLACED[entry.target]
    packet, _, overload = str(entry.target).removeprefix("aten.").partition(".")
    found = getattr(getattr(torch.ops.aten, packet.removesuffix("_"), None), overload, None)
    if found is None or not packet.endswith("_"):
        raise CaptureError(f"{entry.line}: {entry.target} writes in place; write it without changing a tensor")
    return found


def _stack(node: fx.Node) -> list[str]:
    """Paths of the modules in whose forward ``node`` stands, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    inside = [str(path) for path, _ in stack.values()]
    return [p.removeprefix(_PREFIX).removeprefix(".") for p in inside if p.startswith(_PREFIX)]


def _line(node: fx.Node) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else node.name

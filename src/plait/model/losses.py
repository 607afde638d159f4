"""The loss taken apart: its terms, and what a weighted term is weighted by."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from plait.model.roles import Roles
from plait.model.tape import Kind, Node, Ref, Tape

_aten = torch.ops.aten
_ADD = (_aten.add.Tensor, _aten.sub.Tensor)
_MUL = (_aten.mul.Tensor, _aten.mul.Scalar)
_DIV = (_aten.div.Tensor, _aten.div.Scalar)
_ZEROS = (_aten.zeros.default,)
"""What a sum of losses may start from."""
_CROSS_ENTROPY = (_aten.cross_entropy_loss.default, _aten.nll_loss_nd.default, _aten.nll_loss.default)
_MEAN = 1
"""``reduction`` of a loss in ATen: at::Reduction::Mean."""


@dataclass(frozen=True)
class Term:
    """One summand: ``coefficient`` × the value of ``node``."""

    node: int
    coefficient: float


@dataclass(frozen=True)
class MeanOrZero:
    """A mean over targets, or a quotient, that is 0 instead of not-a-number where there is nothing to count.

    A micro-batch may hold ignored labels alone though the whole batch does not; it then weighs nothing.
    """

    operation: Any
    ignored: int | None

    def __call__(self, value: Tensor, counted: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """``operation`` with these arguments: (values, targets, ...) or (sum, count)."""
        if self.ignored is None:
            counted = torch.where(counted == 0, torch.ones_like(counted), counted)
            quotient: Tensor = self.operation(value, counted, *args, **kwargs)
            return quotient
        mean = self.operation(value, counted, *args, **kwargs)
        return torch.where((counted != self.ignored).any(), mean, torch.zeros_like(mean))


@dataclass(frozen=True)
class Count:
    """What a term is divided by, computed from inputs alone: node ``node``'s entries other than ``ignored``.

    Where ``ignored`` is None the node's value itself is the count.
    """

    node: int
    ignored: int | None
    words: str
    at: int
    """The node that divides by it."""

    def of(self, value: Tensor) -> Tensor:
        """The count as a scalar, given the node's value."""
        counted = value if self.ignored is None else (value != self.ignored).sum()
        return counted.reshape(()).to(torch.float64)


def terms(tape: Tape, loss: int) -> list[Term]:
    """``loss`` as a sum of terms, taken apart at sums and at products with constants."""
    found: dict[int, float] = {}
    waiting = [Term(loss, 1.0)]
    while waiting:
        term = waiting.pop(0)
        parts = _parts(tape.nodes[term.node], term.coefficient)
        if parts is None:
            found[term.node] = found.get(term.node, 0.0) + term.coefficient
        else:
            waiting += parts
    summands = {n: c for n, c in found.items() if tape.nodes[n].target not in _ZEROS} or found
    return [Term(node, coefficient) for node, coefficient in sorted(summands.items())]


def _parts(node: Node, factor: float) -> list[Term] | None:
    if node.kind is not Kind.OP or node.form is None or node.form.dims:
        return None  # only scalars: a sum of vectors is not a sum of terms
    first = node.leaves[0] if node.leaves else None
    second = node.leaves[1] if len(node.leaves) > 1 else None
    if node.target is _aten.neg.default and isinstance(first, Ref):
        return [Term(first.node, -factor)]
    if node.target in _ADD and len(node.leaves) == 2 and isinstance(first, Ref) and isinstance(second, Ref):
        return [Term(first.node, factor), Term(second.node, factor * (1 if node.target is _ADD[0] else -1))]
    if not isinstance(first, Ref) or not isinstance(second, (int, float)) or len(node.leaves) != 2:
        return None
    if node.target in _MUL:
        return [Term(first.node, factor * second)]
    return [Term(first.node, factor / second)] if node.target in _DIV and second else None


def counts(tape: Tape, roles: Roles, term: int) -> list[Count]:
    """What ``term`` may be weighted by: its cross-entropies' targets, its divisors known from inputs alone."""
    found = []
    for number in sorted(roles.reductions(tape, [term])):
        node = tape.nodes[number]
        count = _targets(tape, roles, node) or _divisor(tape, roles, node)
        if count is not None:
            found.append(count)
    return found


def _targets(tape: Tape, roles: Roles, node: Node) -> Count | None:
    target = target_of(node)
    if target is None or roles.owned[target]:
        return None
    given = arguments(node)
    form = tape.nodes[target].form
    if given["weight"] is not None or given["reduction"] != _MEAN or form is None or not form.dtype.startswith("int"):
        return None
    ignored = int(given["ignore_index"])
    return Count(target, ignored, f"targets of {node.name} other than {ignored}", node.number)


def _divisor(tape: Tape, roles: Roles, node: Node) -> Count | None:
    if node.target is not _aten.div.Tensor or len(node.leaves) < 2 or not isinstance(node.leaves[1], Ref):
        return None
    divisor = tape.nodes[node.leaves[1].node]
    one = divisor.form is not None and all(line.offset == 1 and not line.slope for line in divisor.form.dims)
    if not one or roles.owned[divisor.number] or not roles.reduced[divisor.number]:
        return None
    return Count(divisor.number, None, f"{divisor.name}, computed from the inputs", node.number)


def guarded(tape: Tape, found: Iterable[Count]) -> Tape:
    """``tape`` with the operations that divide by a count made safe for a count of zero."""
    at = {count.at: count for count in found}
    nodes = [replace(n, target=MeanOrZero(n.target, at[n.number].ignored)) if n.number in at else n for n in tape.nodes]
    return replace(tape, nodes=tuple(nodes))


def target_of(node: Node) -> int | None:
    """The node of a cross-entropy's targets; None for another node."""
    if node.kind is not Kind.OP or node.target not in _CROSS_ENTROPY:
        return None
    target = arguments(node)["target"]
    return target.node if isinstance(target, Ref) else None


def arguments(node: Node) -> dict[str, Any]:
    """A tensor operation's arguments by name, defaults included."""
    args, kwargs = pytree.tree_unflatten(list(node.leaves), node.spec) if node.spec else (node.leaves, {})
    schema = node.target._schema.arguments
    given: dict[str, Any] = {a.name: a.default_value for a in schema}
    given.update(zip((a.name for a in schema), args, strict=False))
    given.update(kwargs)
    return given


def labels(tape: Tape) -> dict[str, int]:
    """Inputs that serve as a cross-entropy's targets and as nothing else → the label that it ignores."""
    losses = {n.number: n for n in tape.nodes if target_of(n) is not None}
    consumers: dict[int, list[int]] = {n.number: [] for n in tape.nodes}
    for node in tape.nodes:
        for argument in node.arguments:
            consumers[argument].append(node.number)
    found: dict[str, int] = {}
    for loss in losses.values():
        before = set(tape.ancestors([target_of(loss) or 0]))
        for number in before:
            node = tape.nodes[number]
            if node.kind is Kind.INPUT and _only_leads_to(number, before, losses, consumers):
                found[node.target] = int(arguments(loss)["ignore_index"])
    return found


def _only_leads_to(
    start: int, through: Iterable[int], losses: Mapping[int, Node], consumers: Mapping[int, list[int]]
) -> bool:
    allowed = set(through)
    waiting = [start]
    while waiting:
        number = waiting.pop()
        for consumer in consumers[number]:
            if consumer in losses and target_of(losses[consumer]) == number:
                continue
            if consumer not in allowed:
                return False
            waiting.append(consumer)
    return True

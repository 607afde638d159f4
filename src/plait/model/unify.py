"""Two exports at different numbers of samples, matched node by node, make a tape for any number."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from plait.errors import CaptureError
from plait.model.entries import Entry, Flat
from plait.model.tape import Form, Here, Kind, Line, Node, Ref, Tape

SAMPLES = (2, 3)
"""Numbers of samples of the two exports. One sample would not do: sizes of 1 broadcast."""


def unify(first: Flat, second: Flat, outputs: Sequence[str], canonical: Mapping[str, str]) -> Tape:
    """The tape of two flat exports of the same model; raises CaptureError where they take different paths.

    ``canonical`` maps each parameter's and buffer's names to its first one.
    """
    one, two = _needed(first), _needed(second)
    if len(one.entries) != len(two.entries):
        raise CaptureError(
            f"the model takes another path for {SAMPLES[1]} samples ({len(two.entries)} operations) than for "
            f"{SAMPLES[0]} ({len(one.entries)}); its code must not depend on the batch size"
        )
    pairs = zip(one.entries, two.entries, strict=True)
    nodes = tuple(_node(number, a, b, canonical) for number, (a, b) in enumerate(pairs))
    return Tape(nodes, one.loss, dict(zip(outputs, one.outputs, strict=True)))


def _needed(flat: Flat) -> Flat:
    """Only what the loss and the outputs need, numbered anew."""
    waiting = [*flat.outputs, *([] if flat.loss is None else [flat.loss])]
    found: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [leaf.node for leaf in flat.entries[number].leaves if isinstance(leaf, Ref)]
    numbers = {old: new for new, old in enumerate(sorted(found))}
    entries = [
        replace(e, leaves=[Ref(numbers[x.node]) if isinstance(x, Ref) else x for x in e.leaves])
        for e in (flat.entries[old] for old in numbers)
    ]
    return Flat(entries, None if flat.loss is None else numbers[flat.loss], [numbers[o] for o in flat.outputs])


def _node(number: int, one: Entry, two: Entry, canonical: Mapping[str, str]) -> Node:
    where = f"{one.home or 'the model'} ({one.line})"
    same = one.kind == two.kind and one.spec == two.spec and len(one.leaves) == len(two.leaves)
    if not same or (one.kind is not Kind.CONSTANT and one.target != two.target):
        raise CaptureError(f"{where}: the model takes another path for {SAMPLES[1]} samples than for {SAMPLES[0]}")
    target = one.target
    if one.kind in (Kind.PARAMETER, Kind.BUFFER):
        target = canonical.get(target, target)
    if one.kind is Kind.CONSTANT and not _equal(one.target, two.target):
        raise CaptureError(f"{where}: a constant tensor depends on the number of samples; make it from an input")
    return Node(
        number=number,
        name=one.name,
        kind=one.kind,
        target=target,
        leaves=tuple(_leaf(a, b, where) for a, b in zip(one.leaves, two.leaves, strict=True)),
        spec=one.spec,
        form=form_between(one.value, two.value, where),
        home=one.home,
        line=one.line,
        gradient=one.gradient,
    )


def _equal(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and one.dtype == two.dtype and bool(torch.equal(one, two))


def _leaf(one: Any, two: Any, where: str) -> Any:
    if isinstance(one, torch.device):
        return Here()
    if type(one) is type(two) and one == two:
        return one
    if _is_number(one) and _is_number(two):
        return _line(one, two)
    raise CaptureError(
        f"{where}: {one!r} for {SAMPLES[0]} samples is {two!r} for {SAMPLES[1]}; only numbers may follow the batch size"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _line(one: float, two: float) -> Line:
    slope = (two - one) / (SAMPLES[1] - SAMPLES[0])
    whole = isinstance(one, int) and isinstance(two, int)
    return Line(slope, one - slope * SAMPLES[0], whole)


def form_between(one: Any, two: Any, where: str) -> Form | None:
    """The form of a tensor that is ``one`` and ``two`` at the two numbers of samples; None for other values."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return None
    if any(isinstance(size, torch.SymInt) for size in (*one.shape, *two.shape)):
        raise CaptureError(
            f"{where}: how many entries this gives depends on the values of tensors; keep all entries and mask those "
            "that don't count, as with torch.where, or move it into a module with parameters"
        )
    dims = tuple(_line(int(a), int(b)) for a, b in zip(one.shape, two.shape, strict=True))
    return Form(dims, str(one.dtype).removeprefix("torch."))

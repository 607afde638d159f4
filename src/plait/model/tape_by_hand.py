"""Branches described by hand as a tape: one opaque call for each part, one entry for each value."""

import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from plait.errors import CaptureError
from plait.model.by_hand import LossTerm, Plain
from plait.model.graph import TensorSpec
from plait.model.losses import Count
from plait.model.part import bind
from plait.model.tape import Form, Kind, Line, Node, Ref, Tape


@dataclass(frozen=True)
class CountedOrZero:
    """A mean as it is, but 0 where there was nothing to count: a micro-batch may hold ignored labels alone."""

    ignored: int | None

    def __call__(self, mean: Tensor, counted: Tensor) -> Tensor:
        """``mean`` unless nothing in ``counted`` counts."""
        some = (counted != (0 if self.ignored is None else self.ignored)).any()
        return torch.where(some, mean, torch.zeros_like(mean))


@dataclass(frozen=True)
class CountOf:
    """A user's function of inputs, by its name the same in every process."""

    function: Any
    names: tuple[str, ...]

    def __call__(self, *given: Tensor) -> Tensor:
        """Its count as a scalar."""
        found = self.function(**dict(zip(self.names, given, strict=True)))
        return torch.as_tensor(found)


@dataclass(frozen=True)
class HandTape:
    """The tape, the node of each value and the count of each term that has one."""

    tape: Tape
    values: Mapping[str, int]
    counts: Mapping[str, Count]


def form_of(spec: TensorSpec) -> Form:
    """A tensor's form from its spec."""
    dims = tuple(Line(n, 0) if d == spec.batch_dim else Line(0, n) for d, n in enumerate(spec.shape))
    return Form(dims, spec.dtype)


class Builder:
    """Makes the tape. ``forms`` of values may be empty: they are found by running the tape without them."""

    def __init__(self, model: nn.Module, inputs: Mapping[str, TensorSpec], canonical: Mapping[str, str]) -> None:
        self._model, self._inputs, self._canonical = model, inputs, canonical
        self._nodes: list[Node] = []
        self._numbers: dict[str, int] = {}
        self._sources: dict[str, int] = {}

    def build(
        self,
        parts: Sequence[Plain],
        terms: Sequence[LossTerm],
        outputs: Mapping[str, str],
        forms: Mapping[str, Form],
    ) -> HandTape:
        """The tape of ``parts``; raises CaptureError for what a part or a count names wrongly."""
        for name, spec in self._inputs.items():
            self._numbers[name] = self._add(name, Kind.INPUT, name, form=form_of(spec))
        counts = {term.value: self._count(term) for term in terms if term.count is not None}
        wanted = {v for part in parts for v in part.reads} | {t.value for t in terms} | set(outputs.values())
        for part in parts:
            self._part(part, forms, wanted, counts)
        tape = Tape(tuple(self._nodes), None, {name: self._numbers[v] for name, v in outputs.items()})
        values = {v: self._numbers[v] for part in parts for v in part.writes if v in self._numbers}
        return HandTape(tape, values, counts)

    def _add(self, name: str, kind: Kind, target: Any, args: Any = (), form: Form | None = None, line: str = "") -> int:
        leaves, spec = pytree.tree_flatten((tuple(args), {}))
        self._nodes.append(Node(len(self._nodes), name, kind, target, tuple(leaves), spec, form, "", line))
        return len(self._nodes) - 1

    def _count(self, term: LossTerm) -> Count:
        where = f"branches: losses: {term.value}: count"
        if isinstance(term.count, str):
            self._check_input(where, term.count)
            words = f"entries of {term.count} other than {term.ignore}"
            return Count(self._numbers[term.count], term.ignore, words, -1)
        names = tuple(inspect.signature(term.count).parameters) if callable(term.count) else ()
        if not names:
            raise CaptureError(f"{where}: give the name of an input, or a function whose parameters are called as such")
        for name in names:
            self._check_input(where, name)
        called = getattr(term.count, "__name__", type(term.count).__name__)
        number = self._add(f"{term.value}.count", Kind.OP, CountOf(term.count, names), self._refs(names))
        return Count(number, None, f"{called}({', '.join(names)})", -1)

    def _check_input(self, where: str, name: str) -> None:
        if name not in self._inputs:
            raise CaptureError(f"{where}: the batch has no input {name!r}; it has {', '.join(self._inputs)}")

    def _refs(self, names: Sequence[str]) -> list[Ref]:
        return [Ref(self._numbers[name]) for name in names]

    def _part(self, part: Plain, forms: Mapping[str, Form], wanted: set[str], counts: Mapping[str, Count]) -> None:
        bound, line = bind(part, self._model), part.title
        tensors = [Ref(self._source(path)) for path in bound.tensors]
        call = self._add(part.name, Kind.PART, bound, (self._refs(part.reads), tensors), line=line)
        for place, value in enumerate(part.writes):
            if value not in wanted:
                continue
            form, count = forms.get(value), counts.get(value)
            name = value if count is None else f"{value}.mean"
            number = self._add(name, Kind.OP, operator.getitem, (Ref(call), place), form, line)
            if count is not None:
                guard = CountedOrZero(count.ignored)
                number = self._add(value, Kind.OP, guard, (Ref(number), Ref(count.node)), form, line)
            self._numbers[value] = number

    def _source(self, path: str) -> int:
        name = self._canonical.get(path, path)
        if name not in self._sources:
            parameters = dict(self._model.named_parameters(remove_duplicate=False))
            kind = Kind.PARAMETER if path in parameters else Kind.BUFFER
            self._sources[name] = self._add(name, kind, name)
        return self._sources[name]

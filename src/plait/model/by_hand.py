"""``Branches``: a model's branches and edges described by hand, for one that export refuses.

A description stands where tracing would: parts run as they are, whatever their code decides by, and everything after
(scopes by trying, plans, the engine) is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from plait.errors import CaptureError
from plait.model.graph import Scope

Run = str | Callable[..., Any]
CountFunction = Callable[..., Tensor]


@dataclass(frozen=True)
class Part:
    """A step of a branch, which becomes a layer; its code is called as it is.

    Args:
        name: of the part, told from all others'.
        run: the path of a submodule, or ``run(model, ...)``; by default the name is the path. A function is given the
            model with no more of it than ``uses`` names.
        reads: what it is called with: names of batch inputs and of values that parts write, in order, or by keyword
            (``{"attention_mask": "text_mask"}``). By default the one value that the part before it writes.
        writes: names for the tensors that it returns, in order, or each with the field of the result that it is
            (``{"image": "pooler_output"}``). By default one, called as the part.
        uses: for a function, paths of the submodules, parameters and buffers that it uses.
    """

    name: str
    run: Run | None = None
    reads: str | Sequence[str] | Mapping[str, str] | None = None
    writes: str | Sequence[str] | Mapping[str, str | int] | None = None
    uses: str | Sequence[str] = ()


@dataclass(frozen=True)
class LossTerm:
    """A summand of the loss: ``coefficient`` × the scalar ``value``.

    ``count`` is what a mean over other things than samples (tokens) divides by: the name of an input, whose entries
    other than ``ignore`` are counted, or a function of inputs (its parameters' names say which) that gives a scalar.
    ``scope`` is found by trying by default.
    """

    value: str
    scope: str | None = None
    coefficient: float = 1.0
    count: str | CountFunction | None = None
    ignore: int = -100


@dataclass(frozen=True)
class Branches:
    """A model as branches of parts.

    Args:
        branches: branch → its parts in order. A text alone is the path of a submodule that reads what the part before
            it writes.
        losses: the value that is the loss, or terms to be added up.
        outputs: values kept for evaluation: names, or name → value.
    """

    branches: Mapping[str, Sequence[Part | str]]
    losses: str | LossTerm | Sequence[str | LossTerm] = ()
    outputs: Sequence[str] | Mapping[str, str] = ()


@dataclass(frozen=True)
class Plain:
    """A part with nothing left out. ``arguments`` are (keyword or None, value), ``results`` (value, field or place)."""

    name: str
    branch: str
    run: Run
    arguments: tuple[tuple[str | None, str], ...]
    results: tuple[tuple[str, str | int], ...]
    uses: tuple[str, ...]

    @property
    def title(self) -> str:
        """It, for messages."""
        return f"branches: {self.branch}: {self.name}"

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of what it reads."""
        return tuple(value for _, value in self.arguments)

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of what it writes."""
        return tuple(value for value, _ in self.results)


def loss_terms(given: Branches) -> tuple[LossTerm, ...]:
    """The terms of the loss; raises CaptureError."""
    losses = tuple(given.losses) if isinstance(given.losses, (list, tuple)) else (given.losses,)
    found = tuple(LossTerm(t) if isinstance(t, str) else t for t in losses)
    for term in found:
        if not isinstance(term, LossTerm):
            raise CaptureError(f"branches: losses: {term!r} is no name of a value and no plait.LossTerm")
        if term.scope is not None and term.scope not in tuple(Scope):
            raise CaptureError(
                f"branches: losses: {term.value}: {term.scope!r} is not a scope; it is {', '.join(Scope)}"
            )
        if term.scope == Scope.WEIGHTED and term.count is None:
            raise CaptureError(f"branches: losses: {term.value}: the scope weighted needs a count to be weighted by")
    twice = next((t.value for i, t in enumerate(found) if t.value in [o.value for o in found[:i]]), None)
    if twice is not None:
        raise CaptureError(f"branches: losses: {twice} stands twice; give it once, with a coefficient")
    return found


def with_outputs(given: Branches, outputs: Sequence[str]) -> Branches:
    """``given``, its outputs by name → value, with values that are asked for beside them; raises CaptureError."""
    if not isinstance(given, Branches):
        raise CaptureError(f"branches: it is a {type(given).__name__}; give plait.Branches({{branch: [parts]}})")
    own = output_values(given)
    return replace(given, outputs={**own, **{name: name for name in outputs if name not in own}})


def output_values(given: Branches) -> dict[str, str]:
    """Output → value."""
    named = (
        given.outputs
        if isinstance(given.outputs, Mapping)
        else {name: name for name in _names(given.outputs, "branches: outputs")}
    )
    return dict(named)


def plain_parts(given: Branches, inputs: Sequence[str]) -> list[Plain]:
    """All parts in an order in which they can run; raises CaptureError naming the branch and the part."""
    if not isinstance(given.branches, Mapping):
        raise CaptureError(f"branches: {given.branches!r}; give a dict, {{branch: [parts]}}")
    parts = [part for branch, listed in given.branches.items() for part in _branch(branch, listed)]
    _check_names(parts, inputs)
    ordered = _ordered(parts)
    _check_gaps(ordered)
    _check_used(ordered, {t.value for t in loss_terms(given)} | set(output_values(given).values()))
    return ordered


def _branch(branch: str, listed: Sequence[Part | str]) -> list[Plain]:
    if isinstance(listed, (str, Part)) or not listed:
        raise CaptureError(f"branches: {branch}: {listed!r}; give a list of its parts")
    found: list[Plain] = []
    for item in listed:
        part = Part(item) if isinstance(item, str) else item
        if not isinstance(part, Part):
            raise CaptureError(f"branches: {branch}: {part!r} is no path of a submodule and no plait.Part")
        found.append(_plain(branch, part, found[-1] if found else None))
    return found


def _plain(branch: str, part: Part, before: Plain | None) -> Plain:
    run = part.name if part.run is None else part.run
    if not isinstance(run, str) and not callable(run):
        raise CaptureError(f"branches: {branch}: {part.name}: run is a {type(run).__name__}; give a path or a function")
    writes = part.name if part.writes is None else part.writes
    results = (
        tuple(writes.items())
        if isinstance(writes, Mapping)
        else tuple((n, i) for i, n in enumerate(_names(writes, f"branches: {branch}: {part.name}: writes")))
    )
    uses = (run,) if isinstance(run, str) else _names(part.uses, f"branches: {branch}: {part.name}: uses")
    made = Plain(part.name, branch, run, (), results, tuple(uses))
    if part.reads is None:
        if before is None or len(before.results) != 1:
            what = "the first of its branch" if before is None else f"after {before.name}, which writes several values"
            raise CaptureError(f"{made.title}: give what it reads: it is {what}")
        return replace(made, arguments=((None, before.writes[0]),))
    if isinstance(part.reads, Mapping):
        return replace(made, arguments=tuple(part.reads.items()))
    return replace(made, arguments=tuple((None, n) for n in _names(part.reads, f"{made.title}: reads")))


def _names(given: object, where: str) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, (list, tuple)) else (None,)
    if not all(isinstance(name, str) for name in found):
        raise CaptureError(f"{where}: {given!r}; give a name or a list of names")
    return tuple(str(name) for name in found)


def _check_names(parts: Sequence[Plain], inputs: Sequence[str]) -> None:
    names: dict[str, Plain] = {}
    makers: dict[str, Plain] = {}
    for part in parts:
        if part.name in names:
            raise CaptureError(
                f"{part.title}: the branch {names[part.name].branch} has a part of this name too; give each another "
                "(the path goes into run)"
            )
        names[part.name] = part
        for value in part.writes:
            if value in makers:
                raise CaptureError(f"{part.title}: writes {value}, which {makers[value].title[10:]} writes too")
            if value in inputs:
                raise CaptureError(f"{part.title}: writes {value}, which is the name of an input of the batch")
            makers[value] = part
    for part in parts:
        for value in part.reads:
            if value not in makers and value not in inputs:
                raise CaptureError(
                    f"{part.title}: reads {value!r}, which no part writes and the batch does not hold; there are "
                    f"{', '.join([*inputs, *makers])}"
                )


def _ordered(parts: Sequence[Plain]) -> list[Plain]:
    """In the order given, but each behind what it reads and behind the part before it in its branch."""
    makers = {value: part for part in parts for value in part.writes}
    before = {p.name: {makers[v].name for v in p.reads if v in makers} for p in parts}
    last: dict[str, Plain] = {}
    for part in parts:
        if part.branch in last:
            before[part.name].add(last[part.branch].name)
        last[part.branch] = part
    done: list[Plain] = []
    waiting = list(parts)
    while waiting:
        names = {p.name for p in done}
        ready = next((p for p in waiting if before[p.name] <= names), None)
        if ready is None:
            raise CaptureError(_cycle(waiting, makers))
        waiting.remove(ready)
        done.append(ready)
    return done


def _cycle(waiting: Sequence[Plain], makers: Mapping[str, Plain]) -> str:
    for part in waiting:
        for value in part.reads:
            maker = makers.get(value)
            if maker is None:
                continue
            if maker is part:
                return f"{part.title}: reads {value}, which it writes itself"
            if maker in waiting and maker.branch == part.branch and waiting.index(part) < waiting.index(maker):
                return f"{part.title}: reads {value}, which {maker.name} writes, a later part of its branch"
    stuck = ", ".join(f"{p.name} (branch {p.branch})" for p in waiting)
    return (
        f"branches: these parts wait for each other in a circle: {stuck}; each part stands behind the one before it in "
        "its branch: another order, or another branch for what joins them, would be right"
    )


def _check_gaps(parts: Sequence[Plain]) -> None:
    """A stage of consecutive parts runs as one: nothing between them may stand in another branch."""
    makers = {value: part for part in parts for value in part.writes}
    needs: dict[str, set[str]] = {}
    last: dict[str, Plain] = {}
    for part in parts:
        direct = {v: makers[v] for v in part.reads if v in makers}
        before = last.get(part.branch)
        for value, maker in direct.items():
            if before is not None and maker is not before and before.name in needs[maker.name]:
                raise CaptureError(
                    f"{part.title}: reads {value}, which is made from {before.name} in the branch {maker.branch}: let "
                    "another branch begin with this part"
                )
        needs[part.name] = {m.name for m in direct.values()}.union(*(needs[m.name] for m in direct.values()))
        last[part.branch] = part


def _check_used(parts: Sequence[Plain], wanted: set[str]) -> None:
    made = {value for part in parts for value in part.writes}
    missing = next((v for v in sorted(wanted) if v not in made), None)
    if missing is not None:
        raise CaptureError(
            f"branches: losses, outputs: {missing} is written by no part; the parts write {', '.join(sorted(made))}"
        )
    if not wanted:
        raise CaptureError("branches: there is no loss and no output; name the value that is the loss: losses='loss'")
    read = {value for part in parts for value in part.reads} | wanted
    for part in parts:
        if not read & set(part.writes):
            raise CaptureError(
                f"{part.title}: nothing reads what it writes ({', '.join(part.writes)}); leave it out, or name what it "
                "writes among the reads of another part, the losses or the outputs"
            )

"""What a description by hand tells of a model: found by running its parts, or recalled on a rank from the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.by_hand import Branches, LossTerm, Plain, loss_terms, output_values, plain_parts, with_outputs
from plait.model.casting import cast_inputs, running
from plait.model.decide import Decision, check_obeyed, settled
from plait.model.graph import Loss, Scope, TensorSpec
from plait.model.group import Cut, Group, Weights
from plait.model.losses import Count, Term
from plait.model.measure import Measures, Recorder
from plait.model.part import Bound
from plait.model.precision import Precision
from plait.model.roles import roles
from plait.model.steps import Step
from plait.model.tape import Context, Kind, Node, Tape
from plait.model.tape_by_hand import Builder, HandTape, form_of
from plait.model.told import Scoped, separate_notes, term_note, told
from plait.model.traced import Traced, canonical_names
from plait.model.trial import Trial, resized
from plait.model.unify import SAMPLES, form_between
from plait.model.unused import Operations
from plait.theirs import first_line


@dataclass(frozen=True)
class TracedByHand(Traced):
    """As ``Traced``; the layers are the parts, in the branches that the user gives."""

    parts: tuple[Plain, ...] = ()
    terms: tuple[LossTerm, ...] = ()
    counts: Mapping[str, Count] | None = None
    values: Mapping[str, int] | None = None

    @property
    def labels(self) -> dict[str, int]:
        """Inputs that hold labels → the label that is ignored."""
        return {t.count: t.ignore for t in self.terms if isinstance(t.count, str)}

    @property
    def scope_values(self) -> set[int]:
        """The nodes that scopes are read from: loss terms and their counts."""
        values = self.values or {}
        return {values[t.value] for t in self.terms} | {count.node for count in (self.counts or {}).values()}

    def cut(self, wanted: Sequence[int], mixing: Sequence[int]) -> Cut:
        """A group for each part."""
        made = Cut(self.tape, self.roles, self.measures, Weights((0,) * len(self.tape.nodes)), wanted, mixing)
        for node in self.tape.nodes:
            if node.kind is Kind.PART:
                part = node.target.part
                made.groups.append(Group([], name=part.name, branch=part.branch))
            if self.roles.owned[node.number]:
                group = made.groups[-1]
                group.nodes.append(node.number)
                group.batch |= node.number in mixing
                made.owner[node.number] = group
        _split_at_batch(made)
        return made

    def term_name(self, node: int) -> str:
        """The value's name."""
        return self.tape.nodes[node].name

    def value_names(self, _: Tape, terms: Mapping[int, str], /) -> dict[int, str]:
        """The user's."""
        return {number: name for name, number in (self.values or {}).items()} | dict(terms)


def _split_at_batch(made: Cut) -> None:
    """A branch ends at a layer that waits for the whole batch, and another one begins."""
    last: dict[str, Group] = {}
    for group in made.groups:
        before = last.get(group.branch)
        last[group.branch] = group
        if before is not None:
            parted = before.batch or group.batch
            group.branch = f"{group.branch}:{group.name}" if parted else before.branch


def trace_by_hand(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    specs: Mapping[str, TensorSpec],
    branches: Branches,
    outputs: Sequence[str],
    precision: Precision = Precision.FP32,
) -> TracedByHand:
    """Run the parts for two numbers of samples; to be called within ``without_dropout``. Raises CaptureError."""
    branches = with_outputs(branches, outputs)
    asked, parts = output_values(branches), plain_parts(branches, tuple(specs))
    terms, canonical = loss_terms(branches), canonical_names(model)
    bare = Builder(model, specs, canonical).build(parts, terms, asked, {})
    runs = [_run(bare.tape, model, cast_inputs(precision, _sized(batch, n)), n, precision) for n in SAMPLES]
    forms = {v: form_between(runs[0].values[i], runs[1].values[i], v) for v, i in bare.values.items()}
    known = {v: form for v, form in forms.items() if form is not None}
    made = Builder(model, specs, canonical).build(parts, terms, asked, known)
    _check_losses(made, terms)
    measures = Measures(
        flops=tuple(f / SAMPLES[0] for f in runs[0].flops),
        random=tuple(n.kind is Kind.PART for n in made.tape.nodes),
        gradient=tuple(_learns(runs[0].values[n.number]) for n in made.tape.nodes),
        data=_data(made.tape),
        dtypes=tuple(_dtype(runs[0].values[n.number]) for n in made.tape.nodes),
    )
    return _traced(model, made, specs, measures, parts, terms, precision)


def recall_by_hand(
    model: nn.Module,
    specs: Mapping[str, TensorSpec],
    values: Mapping[str, TensorSpec],
    outputs: Mapping[str, str],
    branches: Branches,
    precision: Precision,
) -> TracedByHand:
    """What ``trace_by_hand`` found, from the specs of the values; nothing runs."""
    parts = plain_parts(replace(with_outputs(branches, ()), outputs=outputs), tuple(specs))
    terms = loss_terms(branches)
    forms = {name: form_of(spec) for name, spec in values.items()}
    made = Builder(model, specs, canonical_names(model)).build(parts, terms, outputs, forms)
    learns = {made.values[v] for v, spec in values.items() if spec.gradient and v in made.values}
    measures = Measures(
        flops=(0.0,) * len(made.tape.nodes),
        random=tuple(n.kind is Kind.PART for n in made.tape.nodes),
        gradient=_reaching(made.tape, learns),
        data=_data(made.tape),
        dtypes=tuple(n.form.dtype if n.form else "" for n in made.tape.nodes),
    )
    return _traced(model, made, specs, measures, parts, terms, precision)


def _traced(
    model: nn.Module,
    made: HandTape,
    specs: Mapping[str, TensorSpec],
    measures: Measures,
    parts: Sequence[Plain],
    terms: tuple[LossTerm, ...],
    precision: Precision,
) -> TracedByHand:
    tape = made.tape
    return TracedByHand(
        question=None,
        tape=tape,
        measures=measures,
        roles=roles(tape, measures),
        model=model,
        specs=specs,
        canonical=canonical_names(model),
        precision=precision,
        parts=tuple(parts),
        terms=terms,
        counts=made.counts,
        values=made.values,
    )


def decide_by_hand(traced: TracedByHand, trial: Trial, given: Mapping[str, str]) -> Decision:
    """The description's terms, each with its scope: ``given``'s, the description's, or the one found by trying."""
    values, counts = traced.values or {}, traced.counts or {}
    named = {t.value: t for t in traced.terms}
    user = told(traced.tape, given, list(named))
    found: list[Scoped] = []
    forced: set[int] = set()
    notes = []
    for name, term in named.items():
        node, count = Term(values[name], term.coefficient), counts.get(name)
        scope = user.terms.get(name) or (Scope(term.scope) if term.scope else None)
        tried = _tried(trial, node.node, count)
        scoped = node, scope or tried, count if (scope or tried) is Scope.WEIGHTED else None
        if scoped[1] is Scope.WEIGHTED and count is None:
            raise CaptureError(f"scopes: {name}: the scope weighted needs a count; give one to its plait.LossTerm")
        found.append(scoped)
        forced |= {node.node} if scope not in (None, Scope.BATCH) else set()
        notes += [term_note(trial, name, scoped)] if scope not in (None, tried) else []
    mixing = (trial.mixing - user.separate) | user.mixing
    decision = settled(traced, Decision(tuple(found), mixing, frozenset(forced)))
    check_obeyed(traced, decision, user)
    return replace(decision, notes=(*filter(None, notes), *separate_notes(trial, user)))


def _tried(trial: Trial, node: int, count: Count | None) -> Scope:
    if count is not None and trial.is_mean(node, count):
        return Scope.WEIGHTED
    return Scope.MICROBATCH if trial.is_mean(node, None) else Scope.BATCH


def recalled(traced: TracedByHand, losses: Sequence[Loss], mixing: Sequence[str]) -> Decision:
    """The decision that was made, from what the plan says of it."""
    values, counts = traced.values or {}, traced.counts or {}
    found: list[Scoped] = []
    for loss in losses:
        if loss.value not in values:
            raise CaptureError(f"branches: no part writes the loss {loss.value!r}: is it another description?")
        count = counts.get(loss.value) if loss.scope is Scope.WEIGHTED else None
        if loss.scope is Scope.WEIGHTED and count is None:
            raise CaptureError(f"branches: the loss {loss.value} has no count: is it another description?")
        found.append((Term(values[loss.value], loss.coefficient), loss.scope, count))
    forced = frozenset(values[loss.value] for loss in losses if loss.told)
    return Decision(tuple(found), frozenset(n.number for n in traced.tape.nodes if n.name in mixing), forced)


@dataclass(frozen=True)
class _Ran:
    values: dict[int, Any]
    flops: list[float]


def _sized(batch: Mapping[str, Tensor], samples: int) -> dict[str, Tensor]:
    return {name: resized(tensor, samples) for name, tensor in batch.items()}


def _run(tape: Tape, model: nn.Module, batch: Mapping[str, Tensor], samples: int, precision: Precision) -> _Ran:
    device = next(iter(batch.values())).device
    context = Context(samples, device, training=False)
    values: dict[int, Any] = {}
    flops = []
    with torch.enable_grad(), running(precision, device):
        for node in tape.nodes:
            if node.kind is Kind.INPUT:
                values[node.number] = batch[node.target]
                flops.append(0.0)
            else:
                flops.append(_run_node(node, model, values, context))
    return _Ran(values, flops)


def _run_node(node: Node, model: nn.Module, values: dict[int, Any], context: Context) -> float:
    """Run a node and give its FLOPs; raises CaptureError where a part can't run or uses what it doesn't name."""
    step = Step(node, model)
    with Operations() as operations, Recorder(set()) as recorder:
        try:
            step.run(values, context)
        except CaptureError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise CaptureError(_why(node, error, context.samples)) from error
    if node.kind is Kind.PART:
        _check_uses(node.target, operations.taken)
    return float(recorder.flops)


def _why(node: Node, error: Exception, samples: int) -> str:
    where = node.line or f"branches: {node.name}"
    said = f"{where}: raises {type(error).__name__} for {samples} samples: {first_line(error)}"
    if node.kind is Kind.PART and isinstance(error, (AttributeError, TypeError)) and callable(node.target.part.run):
        said += f". It is shown only what it uses ({', '.join(node.target.part.uses) or 'nothing'}): name all in uses"
    return said


def _check_uses(bound: Bound, taken: set[int]) -> None:
    """A part that reaches other parameters, through a closure, would find them empty on another rank."""
    own = {id(p) for path in bound.modules for p in bound.model.get_submodule(path).parameters()}
    named = dict(bound.model.named_parameters(remove_duplicate=False))
    own |= {id(named[name]) for name in bound.tensors if name in named}
    others = [name for name, p in named.items() if id(p) in taken and id(p) not in own]
    if others:
        raise CaptureError(f"{bound.part.title}: uses the parameter {others[0]}, which is not among its uses")


def _check_losses(made: HandTape, terms: Sequence[LossTerm]) -> None:
    for term in terms:
        node = made.tape.nodes[made.values[term.value]]
        form = node.form
        if form is None or form.dims or "float" not in form.dtype:
            shape = "several tensors" if form is None else f"{len(form.dims)} dimensions and dtype {form.dtype}"
            raise CaptureError(
                f"{node.line}: the loss {term.value} has {shape}; it must be one floating-point number (take the mean)"
            )


def _learns(value: Any) -> bool:
    tensors = value if isinstance(value, list) else [value]
    return any(isinstance(t, Tensor) and t.requires_grad for t in tensors)


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else ""


def _data(tape: Tape) -> tuple[bool, ...]:
    """Parts are opaque: what they write depends on all that they read."""
    found: list[bool] = []
    for node in tape.nodes:
        given = node.kind is Kind.INPUT and node.form is not None and node.form.per_sample
        found.append(given or any(found[a] for a in node.arguments))
    return tuple(found)


def _reaching(tape: Tape, learns: set[int]) -> tuple[bool, ...]:
    """``learns`` and the nodes of the same part before them."""
    found = set(learns)
    for node in reversed(tape.nodes):
        if node.number in found and node.kind is Kind.OP:
            found |= {a for a in node.arguments if tape.nodes[a].kind in (Kind.OP, Kind.PART)}
    return tuple(n.number in found for n in tape.nodes)

"""Capture: an ordinary module becomes a BranchGraph and code for each of its layers.

The model is traced on fake tensors (trace, flatten, unify), the trace cut into layers (roles, group) and these
named and arranged in branches (branches, describe). Scopes are found by trying on real weights (trial), and the
layers put together again must give the model's own results for a batch size that was not traced.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.branches import value_names
from plait.model.code import LayerCode, LayerNodes, runner
from plait.model.describe import describe, layer_nodes, value_specs
from plait.model.flatten import flatten
from plait.model.graph import BranchGraph, Loss, Scope, TensorSpec
from plait.model.group import Cut, cut, parameter_items
from plait.model.losses import Count, Term, counts, terms
from plait.model.measure import Measures, fake_inputs, measure
from plait.model.roles import Roles, roles
from plait.model.tape import Tape
from plait.model.trace import Asking, Question, Tracing, fake_weights
from plait.model.trial import PARTS, Trial, run_trial, trial_batch, without_dropout
from plait.model.unify import SAMPLES, unify

LossFunction = Callable[[Any, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Captured:
    """A model taken apart: its graph and each layer's code."""

    graph: BranchGraph
    model: nn.Module
    code: dict[str, LayerCode]
    tape: Tape
    layers: tuple[LayerNodes, ...]
    canonical: Mapping[str, str]
    """Each name of a parameter or buffer → its first name."""
    counters: Mapping[str, tuple[Count, Callable[[Mapping[str, Tensor], int], Tensor]]]

    def count(self, term: Loss, inputs: Mapping[str, Tensor]) -> Tensor:
        """The weight of these samples for ``term`` (a scalar): its count if it is weighted, else their number."""
        samples = _samples(self.graph.inputs, inputs)
        if term.scope is not Scope.WEIGHTED:
            return torch.tensor(float(samples), dtype=torch.float64)
        count, run = self.counters[term.value]
        return count.of(run(inputs, samples))


@dataclass(frozen=True)
class _Traced:
    """What tracing alone tells, the same on every rank."""

    question: Question
    tape: Tape
    measures: Measures
    roles: Roles
    model: nn.Module
    specs: Mapping[str, TensorSpec]
    canonical: Mapping[str, str]

    def cut(self, wanted: Sequence[int], mixing: Sequence[int]) -> Cut:
        """The layers, for loss terms and outputs that are ``wanted``."""
        sizes = {name: p.numel() for name, p in self.model.named_parameters()}
        sizes |= {p: sum(x.numel() for x in m.parameters()) for p, m in self.model.named_modules() if p}
        weights = parameter_items(self.tape, sizes)
        return cut(self.tape, self.roles, self.measures, weights, wanted, mixing)


@dataclass(frozen=True)
class _Decision:
    """What was found or is given: the loss terms, and nodes that mix samples though their form doesn't show it."""

    losses: tuple[tuple[Term, Scope, Count | None], ...]
    mixing: frozenset[int]


def capture(
    model: nn.Module,
    example_batch: Mapping[str, Any],
    *,
    outputs: Sequence[str] = (),
    loss: LossFunction | None = None,
    scopes: Mapping[str, str] | None = None,
) -> Captured:
    """Take ``model`` apart into layers and branches.

    Args:
        model: an ordinary module, with its weights; it is left as it was.
        example_batch: tensors by name, the samples along their first dimension, as ``model(**batch)`` takes them.
        outputs: fields of the model's result that are kept for evaluation.
        loss: ``loss(result, batch)`` gives a scalar; by default the result's own loss.
        scopes: the scope of a loss term's value or of a module that mixes samples, where trying would not show it.

    Raises:
        CaptureError: the model can't be traced, or the layers put together again differ from it.
    """
    example = _example(example_batch)
    traced = _trace(model, {n: _spec(t) for n, t in example.items()}, tuple(outputs), loss, wants_loss=True)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batch = {n: t.to(device) for n, t in trial_batch(traced.tape, example).items()}
    with without_dropout(model):
        trial = run_trial(traced.tape, traced.roles, traced.measures, model, batch)
        decision = _decide(traced, trial, dict(scopes or {}))
        captured = _assemble(traced, decision)
        _verify(captured, traced.question, batch)
    return captured


def retrace(
    model: nn.Module,
    inputs: Mapping[str, TensorSpec],
    losses: Sequence[Loss],
    outputs: Mapping[str, str] | Sequence[str] = (),
    loss: LossFunction | None = None,
    mixing: Sequence[str] = (),
) -> Captured:
    """What ``capture`` found, without trying anything: the model's weights may be absent (on the meta device).

    ``mixing`` is ``BranchGraph.mixing``. Every rank gets the same layers and names; a model or a loss other than
    the captured one shows in ``graph.fingerprint``.
    """
    traced = _trace(model, inputs, tuple(outputs), loss, wants_loss=bool(losses))
    return _assemble(traced, _recall(traced, losses, mixing))


def _example(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    found = {name: value for name, value in batch.items() if value is not None}
    wrong = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if wrong:
        raise CaptureError(
            f"example_batch: {wrong[0]!r} is a {type(found[wrong[0]]).__name__}; a batch holds tensors only "
            "(switches such as return_loss and use_cache are set by capture; bind others in a wrapping module)"
        )
    sizes = {name: tensor.shape[0] for name, tensor in found.items() if tensor.dim()}
    if not sizes:
        raise CaptureError("example_batch: there is no tensor with samples along its first dimension")
    if len(set(sizes.values())) > 1:
        raise CaptureError(f"example_batch: the tensors hold different numbers of samples: {sizes}")
    if not next(iter(sizes.values())):
        raise CaptureError("example_batch: there are no samples in it")
    return found


def _spec(tensor: Tensor) -> TensorSpec:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if not tensor.dim():
        return TensorSpec(shape=(), dtype=dtype, batch_dim=None)
    return TensorSpec(shape=(1, *tensor.shape[1:]), dtype=dtype)


def _trace(
    model: nn.Module,
    specs: Mapping[str, TensorSpec],
    outputs: tuple[str, ...],
    loss: LossFunction | None,
    *,
    wants_loss: bool,
) -> _Traced:
    question = _question(model, tuple(specs), outputs, loss, wants_loss)
    names = _canonical(model)
    tracing = Tracing(model)
    with fake_weights(model, tracing.mode):
        batches = [fake_inputs(specs, n, tracing.mode) for n in SAMPLES]
        exports = [tracing.export(question, batch) for batch in batches]
        tape = unify(*(flatten(e, tuple(specs)) for e in exports), outputs, names)
        measures = measure(tape, model, batches[0], tracing.mode)
    return _Traced(question, tape, measures, roles(tape, measures), model, specs, names)


def _canonical(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the first name of the same object."""
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _question(
    model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...], loss: LossFunction | None, wants_loss: bool
) -> Question:
    parameters = inspect.signature(model.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = tuple(n for n in inputs if n in parameters)
    if loss is None and not anything and len(known) < len(inputs):
        wrong = next(n for n in inputs if n not in parameters)
        raise CaptureError(f"example_batch: {wrong!r} is not an argument of {type(model).__name__}.forward")
    arguments = inputs if anything and (loss is None or not known) else known
    switches: dict[str, Any] = {}
    if "return_loss" in parameters and loss is None and wants_loss:
        switches["return_loss"] = True
    if "use_cache" in parameters or (anything and hasattr(getattr(model, "config", None), "use_cache")):
        switches["use_cache"] = False
    return Question(model, arguments, switches, loss, wants_loss, outputs)


def _decide(traced: _Traced, trial: Trial, given: dict[str, str]) -> _Decision:
    """Loss terms with their scopes: one if its parts have the same scope in the same layer, else one for each part."""
    tape = traced.tape
    mixing = frozenset(trial.mixing | _told_to_mix(traced, given))
    if tape.loss is None:
        return _Decision((), mixing)
    whole = Term(tape.loss, 1.0)
    parts = [t for t in terms(tape, tape.loss)]
    names = _term_names(traced, parts)
    found = [(t, *_scope(trial, t, given.get(names[t.node]))) for t in parts]
    one = (whole, *_scope(trial, whole, given.get("loss")))
    same = len({(scope, None if count is None else count.node) for _, scope, count in found}) == 1
    if len(parts) == 1 and parts[0].node == tape.loss:
        return _Decision((one,), mixing)
    if same and one[1] is found[0][1] and _in_one_layer(traced, found, mixing):
        return _Decision((one,), mixing)
    return _Decision(tuple(found), mixing)


def _scope(trial: Trial, term: Term, given: str | None) -> tuple[Scope, Count | None]:
    if given is None:
        return trial.scope(term.node)
    scope = Scope(given)
    possible = counts(trial.tape, trial.roles, term.node)
    if scope is Scope.WEIGHTED and not possible:
        raise CaptureError("scopes: the term is said to be weighted, but no count can be computed from the inputs")
    return scope, possible[0] if scope is Scope.WEIGHTED else None


def _told_to_mix(traced: _Traced, given: Mapping[str, str]) -> set[int]:
    told = {name for name, scope in given.items() if scope == Scope.BATCH}
    return {n.number for n in traced.tape.nodes if n.name in told or n.target in told}


def _in_one_layer(traced: _Traced, found: Sequence[tuple[Term, Scope, Count | None]], mixing: frozenset[int]) -> bool:
    decision = _Decision(tuple(found), mixing)
    made = _cut(traced, decision)
    return len({id(made.owner[term.node]) for term, _, _ in found}) == 1


def _cut(traced: _Traced, decision: _Decision) -> Cut:
    batch = [term.node for term, scope, _ in decision.losses if scope is Scope.BATCH]
    mixing = set(decision.mixing) | traced.roles.structural_mixing(traced.tape)
    mixing |= traced.roles.reductions(traced.tape, [*batch, *decision.mixing])
    wanted = [term.node for term, _, _ in decision.losses] + list(traced.tape.outputs.values())
    return traced.cut(list(dict.fromkeys(wanted)), sorted(mixing))


def _term_names(traced: _Traced, parts: Sequence[Term]) -> dict[int, str]:
    """Names of loss terms by node: the whole is "loss", a part is called after its operation."""
    loss = traced.tape.loss
    return {t.node: "loss" if t.node == loss else f"loss.{traced.tape.nodes[t.node].name}" for t in parts}


def _recall(traced: _Traced, losses: Sequence[Loss], mixing: Sequence[str]) -> _Decision:
    """The decision that ``capture`` made, from what the graph says of it."""
    tape = traced.tape
    if tape.loss is None:
        return _Decision((), frozenset(n.number for n in tape.nodes if n.name in mixing))
    parts = [Term(tape.loss, 1.0), *terms(tape, tape.loss)]
    by_name = {name: node for node, name in _term_names(traced, parts).items()}
    found = []
    for given in losses:
        if given.value not in by_name:
            raise CaptureError(
                f"the loss has no term {given.value!r}; it has {', '.join(by_name)}: is it another model?"
            )
        node = by_name[given.value]
        count = next((c for c in counts(tape, traced.roles, node) if c.words == given.count), None)
        if given.scope is Scope.WEIGHTED and count is None:
            raise CaptureError(f"the loss term {given.value} has no count {given.count!r}: is it another model?")
        found.append((Term(node, given.coefficient), given.scope, count))
    return _Decision(tuple(found), frozenset(n.number for n in tape.nodes if n.name in mixing))


def _assemble(traced: _Traced, decision: _Decision) -> Captured:
    tape, model = traced.tape, traced.model
    made = _cut(traced, decision)
    terms_named = _term_names(traced, [term for term, _, _ in decision.losses])
    given = {node: name for name, node in tape.outputs.items()} | terms_named
    names = value_names(tape, given)
    layers = layer_nodes(made, list(terms_named), names)
    losses = tuple(
        Loss(value=names[t.node], scope=s, coefficient=t.coefficient, count=c.words if c else "")
        for t, s, c in decision.losses
    )
    graph = BranchGraph(
        model=type(model).__name__,
        inputs=dict(traced.specs),
        values=value_specs(made, layers),
        layers=tuple(describe(made, layers, model, traced.canonical)),
        losses=losses,
        outputs={name: names[node] for name, node in tape.outputs.items()},
        mixing=tuple(tape.nodes[n].name for n in sorted(decision.mixing)),
        notes=tuple(_notes(traced, made, layers)),
    )
    code = {x.name: LayerCode(model, tape, [x], set(x.writes), traced.canonical) for x in layers}
    counters = {names[t.node]: (c, runner(model, tape, c.node)) for t, _, c in decision.losses if c is not None}
    return Captured(graph, model, code, tape, tuple(layers), traced.canonical, counters)


def _notes(traced: _Traced, made: Cut, layers: Sequence[LayerNodes]) -> list[str]:
    found = [
        f"{layer.name} needs the whole batch at once: micro-batches wait for each other there"
        for layer, group in zip(layers, made.groups, strict=True)
        if group.batch
    ]
    unused = [n for n in traced.specs if not any(n in layer.inputs for layer in layers)]
    return found + [f"the input {name} is not used" for name in unused]


def _samples(specs: Mapping[str, TensorSpec], inputs: Mapping[str, Tensor]) -> int:
    return next(t.shape[0] for n, t in inputs.items() if n in specs and specs[n].batch_dim == 0)


@torch.no_grad()
def _verify(captured: Captured, question: Question, batch: Mapping[str, Tensor]) -> None:
    """The layers, one after the other, must give the model's own loss and outputs for a size not traced."""
    values = {n: t.clone() for n, t in batch.items()}
    for layer in captured.graph.layers:
        values |= captured.code[layer.name](values)
    loss, outputs = Asking(question)({n: t.clone() for n, t in batch.items()})
    found = {name: values[captured.graph.outputs[name]] for name in question.outputs}
    expected = dict(zip(question.outputs, outputs, strict=True))
    if loss is not None:
        expected["loss"] = loss
        found["loss"] = sum((t.coefficient * values[t.value] for t in captured.graph.losses), torch.zeros(()))
    for name, reference in expected.items():
        scale = float(reference.abs().max()) if reference.numel() else 0.0
        difference = float((found[name].reshape(reference.shape) - reference).abs().max()) if reference.numel() else 0.0
        if not difference <= 1e-4 * scale + 1e-6:
            raise CaptureError(
                f"{captured.graph.model}: the layers put together give another {name} than the model for {sum(PARTS)} "
                f"samples (off by {difference:.3g} of {scale:.3g}); does its code depend on the batch size or on "
                "state outside its modules?"
            )

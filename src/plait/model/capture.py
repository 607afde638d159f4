"""Capture: an ordinary module becomes a BranchGraph and code for each of its layers.

The model is traced on fake tensors (trace, flatten, unify), the trace cut into layers (roles, group) and these
named and arranged in branches (branches, describe). Scopes are found by trying on real weights (trial), and the
layers put together again must give the model's own results for a batch size that was not traced.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.by_hand import Branches
from plait.model.casting import weights_cast
from plait.model.code import LayerCode, LayerNodes, runner
from plait.model.decide import Decision, cut_layers, decide, recall, term_names
from plait.model.describe import describe, layer_nodes, learning, value_specs
from plait.model.graph import BranchGraph, Loss, Scope, TensorSpec
from plait.model.losses import Count, guarded, labels
from plait.model.notes import notes
from plait.model.precision import Precision, precision_of
from plait.model.rehearse import check_numbers, rehearse
from plait.model.restore import unchanged
from plait.model.standins import try_without_weights, with_values, without_weights
from plait.model.steps import home_of
from plait.model.tape import Kind, Tape
from plait.model.trace import Asking, Question
from plait.model.traced import LossFunction, Traced, question_of, trace_model
from plait.model.traced_by_hand import TracedByHand, decide_by_hand, recall_by_hand, recalled, trace_by_hand
from plait.model.trial import PARTS, Trial, run_trial, trial_batch, without_dropout
from plait.theirs import first_line


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

    @property
    def counting(self) -> frozenset[str]:
        """The buffers that counting reads."""
        nodes = (self.tape.nodes[n] for count, _ in self.counters.values() for n in self.tape.ancestors([count.node]))
        return frozenset(str(node.target) for node in nodes if node.kind is Kind.BUFFER)

    def count(self, term: Loss, inputs: Mapping[str, Tensor]) -> Tensor:
        """The weight of these samples for ``term`` (a scalar): its count if it is weighted, else their number."""
        samples = _samples(self.graph.inputs, inputs)
        if term.scope is not Scope.WEIGHTED:
            return torch.tensor(float(samples), dtype=torch.float64)
        count, run = self.counters[term.value]
        return count.of(run(inputs, samples))


def capture(
    model: nn.Module,
    example_batch: Mapping[str, Any],
    *,
    outputs: Sequence[str] = (),
    loss: LossFunction | None = None,
    scopes: Mapping[str, str] | None = None,
    precision: str = Precision.FP32,
    branches: Branches | None = None,
) -> Captured:
    """Take ``model`` apart into layers and branches.

    Args:
        model: an ordinary module; it is left as it was. On the meta device (``plait.deferred``, or built within
            ``torch.device("meta")``) no memory is made for its weights; the graph's notes tell what isn't tried.
        example_batch: tensors by name, the samples along their first dimension, as ``model(**batch)`` takes them;
            those on the meta device get random values.
        outputs: fields of the model's result that are kept for evaluation.
        loss: ``loss(result, batch)`` gives a scalar; by default the result's own loss.
        scopes: scopes by the name of a loss term or a module, where trying does not show what is meant. They are
            obeyed; the graph's notes tell by how much one is contrary to what was found.
        precision: in which the model will be trained: fp32 (as it is), bf16 or bf16-params. Scopes are found by
            trying in the model's own.
        branches: the model described by hand, where export refuses it; its parts are called as they are. ``loss``
            is then only compared with the description's.

    Raises:
        CaptureError: the model can't be traced, or the layers put together again differ from it.
    """
    chosen = precision_of(precision)
    if not isinstance(model, nn.Module):
        raise CaptureError(f"model: it is a {type(model).__name__}, no nn.Module")
    example = _example(example_batch)
    check_numbers(model, example)
    if branches is not None:
        captured = _capture_by_hand(model, example, branches, outputs, loss, dict(scopes or {}), chosen)
    else:
        captured = _capture_traced(model, example, outputs, loss, dict(scopes or {}), chosen)
    for code in captured.code.values():
        code.training = model.training
    return captured


def _capture_traced(
    model: nn.Module,
    example: Mapping[str, Tensor],
    outputs: Sequence[str],
    loss: LossFunction | None,
    scopes: Mapping[str, str],
    precision: Precision,
) -> Captured:
    try:
        traced = trace_model(model, _specs(example), tuple(outputs), loss, wants_loss=True)
        with unchanged(model), without_dropout(model):
            captured = _tried(traced, example, scopes)
    except (Exception, SystemExit):
        if without_weights(model) is None:
            rehearse(model, example, outputs, loss)  # a failure of the model's own is told before what came of it
        raise
    return captured if precision is Precision.FP32 else _in_precision(captured, loss, precision)


def _tried(traced: Traced, example: Mapping[str, Tensor], scopes: Mapping[str, str]) -> Captured:
    """The layers that follow from a trial, compared with the model where it has weights."""
    tape, model = traced.tape, traced.model
    if without_weights(model):
        trial = try_without_weights(tape, traced.roles, model, trial_batch(labels(tape), with_values(example)))
        return _assemble(traced, decide(traced, trial, scopes))
    batch = _on_device(model, trial_batch(labels(tape), example))
    captured = _assemble(traced, decide(traced, run_trial(tape, traced.roles, model, batch), scopes))
    _verify(captured, traced.question, batch)
    return captured


def _capture_by_hand(
    model: nn.Module,
    example: Mapping[str, Tensor],
    branches: Branches,
    outputs: Sequence[str],
    loss: LossFunction | None,
    scopes: Mapping[str, str],
    precision: Precision,
) -> Captured:
    if (absent := without_weights(model)) is not None:
        raise CaptureError(f"branches: {absent} is on the meta device; a model described by hand needs weights to run")
    specs, given = _specs(example), _on_device(model, example)
    with unchanged(model), without_dropout(model):
        traced = trace_by_hand(model, given, specs, branches, outputs)
        batch = trial_batch(traced.labels, given)
        trial = _try_parts(traced, model, batch)
        decision = decide_by_hand(traced, trial, scopes)
        captured = _assemble(traced, decision)
        unlike = _compare(captured, model, specs, loss, batch)
        if precision is not Precision.FP32:
            with weights_cast(precision, model):
                traced = trace_by_hand(model, given, specs, branches, outputs, precision)
            captured = _assemble(traced, decision)
    graph = captured.graph
    notes = (*graph.notes, *unlike, *_unlisted(model, graph, captured.canonical))
    return replace(captured, graph=graph.model_copy(update={"notes": notes}))


def _try_parts(traced: TracedByHand, model: nn.Module, batch: Mapping[str, Tensor]) -> Trial:
    try:
        return run_trial(traced.tape, traced.roles, model, batch, traced.scope_values)
    except CaptureError:
        raise
    except Exception as error:  # the parts' code may raise anything for other samples
        raise CaptureError(
            f"branches: a part raises {type(error).__name__} for {sum(PARTS)} samples or a part of them: {error}"
        ) from error


def _compare(
    captured: Captured,
    model: nn.Module,
    specs: Mapping[str, TensorSpec],
    loss: LossFunction | None,
    batch: Mapping[str, Tensor],
) -> list[str]:
    """A note where the model gives no loss by itself, with which that of the parts could be compared."""
    try:
        question = question_of(model, tuple(specs), (), loss, wants_loss=True)
        Asking(question)({n: t.clone() for n, t in batch.items()})
    except Exception as error:  # the model's own code may raise anything, or need other arguments
        return [f"the parts could not be compared with the model's own forward: {first_line(error)}"]
    _verify(captured, question, batch)
    return []


def _unlisted(model: nn.Module, graph: BranchGraph, canonical: Mapping[str, str]) -> list[str]:
    listed = graph.parameters()
    found = [name for name, _ in model.named_parameters() if canonical.get(name, name) not in listed]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return [f"no part uses the parameters {', '.join(found[:3])}{more}: they are not trained"] if found else []


def _on_device(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    device = home_of(model)
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _specs(batch: Mapping[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: _spec(tensor) for name, tensor in batch.items()}


def _in_precision(found: Captured, loss: LossFunction | None, precision: Precision) -> Captured:
    """What was found for the model's own precision, traced in another."""
    graph = found.graph
    given = graph.inputs, graph.losses, graph.outputs
    traced = retrace(found.model, *given, loss=loss, mixing=graph.mixing, precision=precision)
    return replace(traced, graph=traced.graph.model_copy(update={"notes": graph.notes}))


def retrace(
    model: nn.Module,
    inputs: Mapping[str, TensorSpec],
    losses: Sequence[Loss],
    outputs: Mapping[str, str] | Sequence[str] = (),
    loss: LossFunction | None = None,
    mixing: Sequence[str] = (),
    precision: Precision = Precision.FP32,
) -> Captured:
    """What ``capture`` found, without trying anything: the model's weights may be absent (on the meta device).

    ``mixing`` is ``BranchGraph.mixing``. Every rank gets the same layers and names; a model or a loss other than
    the captured one shows in ``graph.fingerprint``.
    """
    traced = trace_model(model, inputs, tuple(outputs), loss, wants_loss=bool(losses), precision=precision)
    return _assemble(traced, recall(traced, losses, mixing))


def retrace_by_hand(
    model: nn.Module,
    inputs: Mapping[str, TensorSpec],
    values: Mapping[str, TensorSpec],
    losses: Sequence[Loss],
    outputs: Mapping[str, str],
    branches: Branches,
    mixing: Sequence[str] = (),
    precision: Precision = Precision.FP32,
) -> Captured:
    """Like ``retrace`` for a model described by ``branches``; ``values`` are the graph's. Nothing of it runs."""
    traced = recall_by_hand(model, inputs, values, outputs, branches, precision)
    return _assemble(traced, recalled(traced, losses, mixing))


def _example(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    if not isinstance(batch, Mapping):
        raise CaptureError(f"example_batch: it is a {type(batch).__name__}; give tensors by name, as a dict")
    found = {name: value for name, value in batch.items() if value is not None}
    wrong = [name for name, value in found.items() if not isinstance(value, Tensor)]
    if wrong:
        raise CaptureError(
            f"example_batch: {wrong[0]!r} is a {type(found[wrong[0]]).__name__}; a batch holds tensors only "
            "(switches such as return_loss and use_cache are set by capture; bind others in a wrapping module)"
        )
    odd = next((n for n, t in found.items() if t.layout is not torch.strided or t.is_nested), None)
    if odd is not None:
        raise CaptureError(f"example_batch: {odd!r} is {found[odd].type()}; it must be an ordinary tensor with numbers")
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


def _assemble(traced: Traced, decision: Decision) -> Captured:
    made = cut_layers(traced, decision)
    model = traced.model
    tape = made.tape = guarded(traced.tape, [c for _, _, c in decision.losses if c is not None])
    terms_named = term_names(traced, [term for term, _, _ in decision.losses])
    names = traced.value_names(tape, terms_named)
    layers = layer_nodes(made, list(terms_named), names)
    losses = tuple(
        Loss(
            value=names[t.node],
            scope=s,
            coefficient=t.coefficient,
            count=c.words if c else "",
            told=t.node in decision.forced,
        )
        for t, s, c in decision.losses
    )
    specs = value_specs(made, layers, learning(made, terms_named))
    described = tuple(describe(made, layers, model, traced.canonical, specs, traced.precision))
    graph = BranchGraph(
        model=type(model).__name__,
        precision=traced.precision,
        inputs=dict(traced.specs),
        values=specs,
        layers=described,
        losses=losses,
        outputs={name: names[node] for name, node in tape.outputs.items()},
        mixing=tuple(tape.nodes[n].name for n in sorted(decision.mixing)),
        by_hand=isinstance(traced, TracedByHand),
        notes=(*decision.notes, *notes(model, tape, layers, [g.batch for g in made.groups], list(traced.specs))),
    )
    code = {x.name: LayerCode(model, tape, [x], set(x.writes), traced.canonical, traced.precision) for x in layers}
    counters = {names[t.node]: (c, runner(model, tape, c.node)) for t, _, c in decision.losses if c is not None}
    return Captured(graph, model, code, tape, tuple(layers), traced.canonical, counters)


def _samples(specs: Mapping[str, TensorSpec], inputs: Mapping[str, Tensor]) -> int:
    return next(t.shape[0] for n, t in inputs.items() if n in specs and specs[n].batch_dim == 0)


@torch.no_grad()
def _verify(captured: Captured, question: Question | None, batch: Mapping[str, Tensor]) -> None:
    """The layers, one after the other, must give the model's own loss and outputs for a size not traced."""
    if question is None:
        return
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

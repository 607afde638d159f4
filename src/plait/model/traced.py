"""Tracing a model: the tape, what its nodes cost and what they are, without any weights or data."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.branches import value_names
from plait.model.casting import cast_specs
from plait.model.coarse import coarse_calls
from plait.model.flatten import flatten
from plait.model.graph import TensorSpec
from plait.model.group import Cut, cut, parameter_items
from plait.model.measure import Measures, fake_inputs, measure
from plait.model.precision import Precision
from plait.model.roles import Roles, roles
from plait.model.tape import Tape
from plait.model.trace import Question, Tracing, fake_weights
from plait.model.unify import SAMPLES, unify

LossFunction = Callable[[Any, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Traced:
    """What tracing alone tells, the same on every rank."""

    question: Question | None
    tape: Tape
    measures: Measures
    roles: Roles
    model: nn.Module
    specs: Mapping[str, TensorSpec]
    canonical: Mapping[str, str]
    precision: Precision = Precision.FP32

    def cut(self, wanted: Sequence[int], mixing: Sequence[int]) -> Cut:
        """The layers, for loss terms and outputs that are ``wanted``."""
        sizes = {name: p.numel() for name, p in self.model.named_parameters()}
        sizes |= {p: sum(x.numel() for x in m.parameters()) for p, m in self.model.named_modules() if p}
        weights = parameter_items(self.tape, sizes)
        return cut(self.tape, self.roles, self.measures, weights, wanted, mixing)

    def term_name(self, node: int) -> str:
        """Of a loss term: the whole is "loss", a part is called after its operation."""
        return "loss" if node == self.tape.loss else f"loss.{self.tape.nodes[node].name}"

    def value_names(self, tape: Tape, terms: Mapping[int, str], /) -> dict[int, str]:
        """A name for each tensor of ``tape``, its loss ``terms`` being named."""
        return value_names(tape, {node: name for name, node in tape.outputs.items()} | dict(terms))


def trace_model(
    model: nn.Module,
    specs: Mapping[str, TensorSpec],
    outputs: tuple[str, ...],
    loss: LossFunction | None,
    *,
    wants_loss: bool,
    precision: Precision = Precision.FP32,
) -> Traced:
    """Trace ``model`` for inputs of the form ``specs``; raises CaptureError."""
    question = question_of(model, tuple(specs), outputs, loss, wants_loss)
    names = canonical_names(model)
    tracing = Tracing(model)
    with fake_weights(model, tracing.mode, precision):
        batches = [fake_inputs(cast_specs(precision, specs), n, tracing.mode) for n in SAMPLES]

        def traced() -> tuple[Tape, Measures]:
            first, second = (flatten(tracing.export(question, batch), tuple(specs)) for batch in batches)
            tape = unify(first, second, outputs, names)
            return tape, measure(tape, model, batches[0], tracing.mode, precision)

        tape, measures = _fine_enough(tracing, traced, model)
    return Traced(question, tape, measures, roles(tape, measures), model, specs, names, precision)


def _fine_enough(
    tracing: Tracing, traced: Callable[[], tuple[Tape, Measures]], model: nn.Module
) -> tuple[Tape, Measures]:
    """A trace in which no call that can be split is most of the model's work, if the model can be traced so."""
    found = traced()
    while coarse := coarse_calls(*found, model):
        before, tracing.inlined = tracing.inlined, tracing.inlined | coarse
        try:
            found = traced()
        except CaptureError:
            tracing.inlined = before
            break
    return found


def canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the first name of the same object."""
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def question_of(
    model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...], loss: LossFunction | None, wants_loss: bool
) -> Question:
    """What to ask the model with such inputs, with the switches that it takes; raises CaptureError."""
    parameters = inspect.signature(model.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    known = tuple(n for n in inputs if n in parameters)
    if loss is None and not anything and len(known) < len(inputs):
        wrong = next(n for n in inputs if n not in parameters)
        raise CaptureError(f"example_batch: {wrong!r} is not an argument of {type(model).__name__}.forward")
    arguments = inputs if anything and (loss is None or not known) else known
    switches: dict[str, Any] = {}
    if "return_loss" in _named_arguments(model) and loss is None and wants_loss:
        switches["return_loss"] = True
    if "use_cache" in parameters or (anything and hasattr(getattr(model, "config", None), "use_cache")):
        switches["use_cache"] = False
    return Question(model, arguments, switches, loss, wants_loss, outputs)


def _named_arguments(model: nn.Module) -> set[str]:
    """What ``model`` takes by name; one that hands anything on to a single module (adapters) takes what that takes."""
    found: set[str] = set()
    while True:
        parameters = inspect.signature(model.forward).parameters.values()
        found |= {p.name for p in parameters}
        children = list(model.children())
        if len(children) != 1 or all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters):
            return found
        model = children[0]

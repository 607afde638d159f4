"""Trials of a model without weights: random values stand for what its layer modules and large weights would give.

The glue between the modules is computed, so that what mixes samples there and the scopes of the losses are found
by trying as with weights. What a module does inside is judged from the kinds of its parts.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.losses import terms
from plait.model.roles import Roles
from plait.model.steps import Step, batch_norms, find_module, is_item
from plait.model.tape import Context, Form, Kind, Node, Tape
from plait.model.trial import PARTS, Trial, try_values

TRIED = 2**20
"""Entries altogether of a module that is run with random weights, since it gives a value over all samples."""
LARGEST = 2**16
"""Entries of the largest parameter or buffer for which random values are made."""


def without_weights(model: nn.Module) -> str | None:
    """The name of a parameter on the meta device; None where there is none."""
    return next((name for name, parameter in model.named_parameters() if parameter.is_meta), None)


def with_values(example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``example`` with random values for its tensors on the meta device: 0 or 1 for whole numbers."""
    generator = torch.Generator().manual_seed(0)
    return {n: random_like(t.shape, t.dtype, generator) if t.is_meta else t for n, t in example.items()}


def random_like(
    shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator, *, positive: bool = False
) -> Tensor:
    """Normal or, where ``positive``, from 0 to 1 uniform random numbers; 0 or 1 for whole numbers and booleans."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 2, shape, generator=generator).to(dtype)
    make = torch.rand if positive else torch.randn
    return make(shape, generator=generator).to(dtype)


def try_without_weights(tape: Tape, roles: Roles, model: nn.Module, batch: Mapping[str, Tensor]) -> Trial:
    """Like ``trial.run_trial``, for a model whose weights are on the meta device; its notes tell what isn't tried.

    Losses may only take values from 0 to 1, as the binary cross-entropy does: if normal random numbers give none,
    such are tried. Raises CaptureError where the glue can run on neither.
    """
    made = set(tape.outputs.values()) if tape.loss is None else {t.node for t in terms(tape, tape.loss)}
    try:
        trial = _tried(tape, roles, StandIns(tape, roles, model), batch)
    except CaptureError:
        return _tried(tape, roles, StandIns(tape, roles, model, positive=True), batch)
    if all(math.isfinite(float(trial.whole[n])) for n in made if n in trial.whole):
        return trial
    return _tried(tape, roles, StandIns(tape, roles, model, positive=True), batch)


def _tried(tape: Tape, roles: Roles, standins: "StandIns", batch: Mapping[str, Tensor]) -> Trial:
    trial = try_values(tape, roles, standins, batch)
    differences = {**trial.differences, **dict.fromkeys(standins.batch_norms(), math.inf)}
    return Trial(tape, roles, trial.whole, trial.parts, differences, tuple(standins.notes()))


class StandIns:
    """The source of a trial's values where weights are absent; the same random numbers each time."""

    def __init__(self, tape: Tape, roles: Roles, model: nn.Module, *, positive: bool = False) -> None:
        self._tape, self._roles, self._model, self._positive = tape, roles, model, positive
        self._generator = torch.Generator().manual_seed(0)
        self._steps = {n.number: Step(n, model) for n in tape.nodes if n.kind is not Kind.INPUT}
        self._filled = self._to_fill()
        self._absent: set[int] = set()
        """Weights without values, and what is made of such alone."""
        self._made: set[int] = set()
        """Nodes of which random numbers are the value."""
        for node in tape.nodes:
            self._classify(node)

    def _to_fill(self) -> dict[int, dict[int, Tensor]]:
        """Calls of small modules that reduce over samples → random values for the modules' tensors, by their ids."""
        nodes = self._tape.nodes
        reduced = {a for n in nodes if is_item(n) and self._roles.is_reduction(n.number) for a in n.arguments}
        found: dict[int, dict[int, Tensor]] = {}
        for node in (nodes[n] for n in sorted(reduced) if nodes[n].kind is Kind.CALL):
            module = find_module(self._model, node.target)
            tensors = [t for t in (*module.parameters(), *module.buffers()) if t.is_meta]
            if sum(t.numel() for t in tensors) <= TRIED:
                found[node.number] = {id(t): self._like(t.shape, t.dtype) for t in tensors}
        return found

    def _classify(self, node: Node) -> None:
        number = node.number
        if node.kind is Kind.INPUT:
            return
        if node.is_source:
            made, absent = self._stored(node).is_meta, self._is_large(node.form)
        else:
            untried = node.kind is Kind.CALL and number not in self._filled
            made = untried or any(a in self._absent for a in node.arguments)
            of_weights = not self._roles.owned[number] and not is_item(node)
            absent = node.form is None or (of_weights and self._is_large(node.form))
        if made:
            (self._absent if absent else self._made).add(number)

    def _stored(self, node: Node) -> Tensor:
        if node.kind is Kind.CONSTANT:
            constant: Tensor = node.target
            return constant
        path, _, name = str(node.target).rpartition(".")
        found: Tensor = getattr(find_module(self._model, path), name)
        return found

    @staticmethod
    def _is_large(form: Form | None) -> bool:
        return form is not None and math.prod(int(line.offset + line.slope) for line in form.dims) > LARGEST

    def is_tried(self, node: Node) -> bool:
        """Whether the value is computed."""
        return node.number not in self._made and node.number not in self._absent

    def of(self, node: Node, values: dict[int, Any], context: Context) -> Any:
        """The value of ``node``: computed where all that it is made of has values, else random, or None."""
        if node.number in self._absent:
            return None
        if node.number not in self._made or node.form is None:
            return self._computed(node, values, context)
        return self._random(node.form, context)

    def batch_norms(self) -> Iterator[int]:
        """Calls of modules that take statistics over the batch."""
        for node in self._tape.nodes:
            called = node.kind is Kind.CALL and self._roles.owned[node.number]
            if called and any(batch_norms(find_module(self._model, node.target))):
                yield node.number

    def notes(self) -> Iterator[str]:
        """What trying could not tell."""
        yield (
            "the weights are absent: what modules do inside was not tried (batch norms are taken to mix samples, other "
            "modules not), and the layers put together were not compared with the model"
        )
        for node in self._tape.nodes:
            if node.number in self._made and self._roles.is_reduction(node.number):
                yield (
                    f"{self._origin(node)}: gives a value over all samples, which can't be tried without weights; it "
                    "is taken to need the whole batch (if a mean over micro-batches will do, say so by scopes)"
                )

    def _origin(self, node: Node) -> str:
        """The module that gives the value, else the operation."""
        before = [self._tape.nodes[a] for a in node.arguments]
        calls = [str(n.target) for n in before if n.kind is Kind.CALL]
        return calls[0] if calls else f"{node.name} ({node.line})"

    def _computed(self, node: Node, values: dict[int, Any], context: Context) -> Any:
        try:
            if node.kind is not Kind.CALL:
                return self._steps[node.number].run(values, context)
            with _filled(find_module(self._model, node.target), self._filled[node.number]):
                return self._steps[node.number].run(values, context)
        except (RuntimeError, IndexError) as error:
            if context.samples != sum(PARTS):
                raise
            raise CaptureError(
                f"{node.home or 'the model'} ({node.line}): random numbers in the place of its modules' results can't "
                f"go through {node.target} ({str(error).splitlines()[0]}); capture the model with weights"
            ) from error

    def _random(self, form: Form, context: Context) -> Tensor:
        shape = tuple(int(line.at(context)) for line in form.dims)
        return self._like(shape, getattr(torch, form.dtype))

    def _like(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return random_like(shape, dtype, self._generator, positive=self._positive)


@contextlib.contextmanager
def _filled(module: nn.Module, values: Mapping[int, Tensor]) -> Iterator[None]:
    """``module`` with ``values`` in the place of tensors that have none, by their ids; restored afterwards."""
    stores: list[dict[str, Any]] = [s for m in module.modules() for s in (m._parameters, m._buffers)]
    saved = [(store, dict(store)) for store in stores]
    try:
        for store in stores:
            store.update({name: values[id(t)] for name, t in store.items() if id(t) in values})
        yield
    finally:
        for store, content in saved:
            store.update(content)

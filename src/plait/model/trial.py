"""Scopes found by trying: a batch against two unequal micro-batches of it, ignored labels and padding included."""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from plait.model.graph import Scope
from plait.model.losses import Count, counts, terms
from plait.model.roles import Roles
from plait.model.steps import Step, batch_norms
from plait.model.streams import undisturbed
from plait.model.tape import Context, Form, Kind, Node, Ref, Tape

PARTS = (2, 3)
"""Samples of the two micro-batches. Unequal, so that a mean over samples differs from a mean of means."""


@contextlib.contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode except for norms over the batch; flags, buffers and random states restored afterwards."""
    flags = [(m, m.training) for m in model.modules()]
    buffers = [
        (m._buffers, name, b, b.clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None
    ]
    model.eval()
    for _, norm in batch_norms(model):
        norm.training = True
    try:
        with undisturbed(), torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training
        for store, name, buffer, value in buffers:
            store[name] = buffer
            buffer.copy_(value)


def trial_batch(labels: Mapping[str, int], example: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Five samples from ``example``, with unequal numbers of ignored labels and of padded positions.

    ``labels`` are the inputs that hold labels, with the label that is ignored.
    """
    count = sum(PARTS)
    batch = {name: resized(tensor, count) for name, tensor in example.items()}
    for name, ignored in labels.items():
        _ignore_some(batch[name], ignored)
    for name, tensor in batch.items():
        if "mask" in name and tensor.dim() == 2 and not tensor.is_floating_point() and _is_binary(tensor):
            for sample in range(count):
                tensor[sample, tensor.shape[1] - sample % max(1, tensor.shape[1] // 2) :] = 0
    return batch


def resized(tensor: Tensor, samples: int) -> Tensor:
    """``samples`` samples of ``tensor`` along its first dimension, repeated where it has fewer; always a copy."""
    if tensor.dim() == 0:
        return tensor.clone()
    indices = torch.arange(samples, device=tensor.device) % tensor.shape[0]
    return tensor.index_select(0, indices)


def _is_binary(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def _ignore_some(tensor: Tensor, ignored: int) -> None:
    if tensor.is_floating_point():
        return  # probabilities, not labels
    if tensor.dim() == 1:
        tensor[PARTS[0] + 1] = ignored
        return
    length = tensor.shape[1]
    tensor[0, (length + 1) // 2 :] = ignored
    tensor[PARTS[0] + 1, length - length // 4 :] = ignored


@dataclass(frozen=True)
class Trial:
    """All values for the whole batch and for its parts.

    ``differences`` tells of each node that mixes samples how far its values for a part are from the part's share of
    those for the whole, as a share of the largest; infinite where it can't run on a part.
    """

    tape: Tape
    roles: Roles
    whole: dict[int, Any]
    parts: tuple[dict[int, Any], ...]
    differences: Mapping[int, float]
    notes: tuple[str, ...] = ()
    """What trying could not tell."""

    @property
    def mixing(self) -> frozenset[int]:
        """Nodes that mix samples."""
        return frozenset(self.differences)

    def scope(self, term: int) -> tuple[Scope, Count | None]:
        """The scope of the scalar ``term``, and what it is weighted by if it is."""
        for count in counts(self.tape, self.roles, term):
            if self.is_mean(term, count):
                return Scope.WEIGHTED, count
        if self.is_mean(term, None):
            return Scope.MICROBATCH, None
        return Scope.BATCH, None

    def whole_and_mean(self, term: int, count: Count | None) -> tuple[float, float]:
        """``term`` for the whole batch, and the mean of its parts by ``count`` (their samples without)."""
        return float(self.whole[term]), self._mean(term, self._weights(count))

    def _weights(self, count: Count | None) -> Sequence[float]:
        return PARTS if count is None else [float(count.of(part[count.node])) for part in self.parts]

    def is_mean(self, term: int, count: Count | None) -> bool:
        """Whether ``term`` is the mean of its parts by ``count`` (their samples without)."""
        weights = self._weights(count)
        if not sum(weights):
            return False
        reference = float(self.whole[term])
        return abs(self._mean(term, weights) - reference) <= 1e-5 * abs(reference) + 1e-8

    def _mean(self, term: int, weights: Sequence[float]) -> float:
        total = sum(weights) or math.nan
        return sum(w / total * float(part[term]) for w, part in zip(weights, self.parts, strict=True))


def run_trial(
    tape: Tape, roles: Roles, model: nn.Module, batch: Mapping[str, Tensor], read: Iterable[int] = ()
) -> Trial:
    """Run ``tape`` on ``batch`` and on its parts; to be called within ``without_dropout``.

    Scopes are read from the nodes ``read`` too, beside those of the tape's own loss.
    """
    return try_values(tape, roles, Computed(tape, model), batch, read)


class Source(Protocol):
    """Where a trial's values come from."""

    def of(self, node: Node, values: dict[int, Any], context: Context) -> Any:
        """The value of ``node`` for the whole batch or a part, given those before it."""

    def is_tried(self, node: Node) -> bool:
        """Whether ``of`` computes the value from those before it."""


class Computed:
    """Every value computed, by the model's own modules and weights."""

    def __init__(self, tape: Tape, model: nn.Module) -> None:
        self._steps = {node.number: Step(node, model) for node in tape.nodes if node.kind is not Kind.INPUT}

    def of(self, node: Node, values: dict[int, Any], context: Context) -> Any:
        """The node's result."""
        return self._steps[node.number].run(values, context)

    def is_tried(self, node: Node) -> bool:  # noqa: ARG002
        """Always."""
        return True


def try_values(
    tape: Tape, roles: Roles, source: Source, batch: Mapping[str, Tensor], read: Iterable[int] = ()
) -> Trial:
    """Values from ``source`` for ``batch`` and its parts, node by node; what no scope is read from is let go."""
    device = next(iter(batch.values())).device
    context = Context(sum(PARTS), device, training=False)
    whole: dict[int, Any] = {}
    starts = (0, *itertools.accumulate(PARTS[:-1]))
    parts = [_Part(tape, roles, source, whole, range(a, a + n), device) for a, n in zip(starts, PARTS, strict=True)]
    done = _last_uses(tape, {*read, *scope_values(tape, roles)})
    for node in tape.nodes:
        whole[node.number] = batch[node.target] if node.kind is Kind.INPUT else source.of(node, whole, context)
        for part in parts:
            part.run(node)
        for number in done.get(node.number, ()):
            for values in (whole, *(p.values for p in parts)):
                del values[number]
    differences: dict[int, float] = {}
    for number, difference in (item for part in parts for item in part.differences.items()):
        differences[number] = max(difference, differences.get(number, 0.0))
    return Trial(tape, roles, whole, tuple(p.values for p in parts), differences)


def scope_values(tape: Tape, roles: Roles) -> set[int]:
    """The nodes that scopes are read from: loss terms and what they may be weighted by."""
    found = set() if tape.loss is None else {tape.loss, *(t.node for t in terms(tape, tape.loss))}
    return found | {count.node for term in found for count in counts(tape, roles, term)}


def _last_uses(tape: Tape, keep: set[int]) -> dict[int, list[int]]:
    """Node → those whose values nothing after it needs."""
    last: dict[int, int] = {}
    for node in tape.nodes:
        last.update(dict.fromkeys((node.number, *node.arguments), node.number))
    found: dict[int, list[int]] = {}
    for number, at in last.items():
        if number not in keep:
            found.setdefault(at, []).append(number)
    return found


class _Part:
    """Runs one micro-batch, each operation on its share of the whole batch's values: differences stay local."""

    def __init__(
        self,
        tape: Tape,
        roles: Roles,
        source: Source,
        whole: Mapping[int, Any],
        samples: range,
        device: torch.device,
    ) -> None:
        self._tape, self._roles, self._source, self._whole, self._samples = tape, roles, source, whole, samples
        self._context = Context(len(samples), device, training=False)
        self.values: dict[int, Any] = {}
        self.differences: dict[int, float] = {}

    def run(self, node: Node) -> None:
        """Give ``node`` its value; the whole batch's is known."""
        if node.kind is Kind.INPUT:
            self.values[node.number] = self._share(self._whole[node.number], node.form)
        elif self._source.is_tried(node):
            self._try(node)
        else:
            self.values[node.number] = self._untried(node)

    def _try(self, node: Node) -> None:
        number, form = node.number, node.form
        expected = self._expected(node)
        try:
            result = self._source.of(node, self.values, self._context)
        except (RuntimeError, IndexError):
            # It can't even run on a part of the samples, as an index into the whole batch can't.
            self.values[number] = self._whole[number] if expected is None else expected
            self.differences[number] = math.inf
            return
        self.values[number] = result
        if expected is not None and form is not None and self._roles.owned[number]:
            if not _close(result, expected):
                self.differences[self._maker(node)] = _difference(result, expected)
            self.values[number] = expected

    def _untried(self, node: Node) -> Any:
        """Its share of the whole batch's value; what is reduced over samples is another value in each part."""
        expected = self._expected(node)
        if expected is not None:
            return expected
        if self._roles.is_reduction(node.number):
            return self._source.of(node, self.values, self._context)
        return self._whole[node.number]

    def _expected(self, node: Node) -> Tensor | None:
        """The part's share of the whole batch's value, where it holds entries for each sample."""
        value = self._whole[node.number]
        if value is None or node.form is None or not node.form.per_sample:
            return None
        return self._share(value, node.form)

    def _maker(self, node: Node) -> int:
        """The node that computes what ``node`` only picks from several results."""
        first = node.leaves[0] if node.leaves else None
        picks = isinstance(first, Ref) and self._tape.nodes[first.node].form is None
        return first.node if picks and isinstance(first, Ref) else node.number

    def _share(self, tensor: Tensor, form: Form | None) -> Tensor:
        if form is None or not form.batch_dims:
            return tensor
        dim = form.batch_dims[0]
        factor = int(form.dims[dim].slope)
        return tensor.narrow(dim, self._samples.start * factor, len(self._samples) * factor)


def _close(one: Tensor, two: Tensor) -> bool:
    """Equal to rounding; a value of another number of samples may be rounded otherwise by its kernel."""
    if one.shape != two.shape:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, two))
    scale = float(two.abs().nan_to_num(posinf=0.0, neginf=0.0).max()) if two.numel() else 0.0
    relative = max(1e-4, 16 * torch.finfo(two.dtype).eps)
    return bool(torch.allclose(one, two, rtol=0.0, atol=relative * scale + 1e-7, equal_nan=True))


def _difference(one: Tensor, two: Tensor) -> float:
    """The largest difference as a share of the largest value; infinite where they can't be compared."""
    if one.shape != two.shape or not two.numel():
        return math.inf
    scale = float(two.double().abs().max())
    difference = float((one.double() - two.double()).abs().max())
    return difference / scale if scale else math.inf

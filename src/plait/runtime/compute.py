"""The computing of one rank: forwards and backwards of its stages on micro-batches."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from plait.errors import RunError
from plait.model.graph import TensorSpec
from plait.model.stages import Stage
from plait.model.streams import Stream
from plait.runtime.boxes import Exchange
from plait.runtime.buffers import ChangedBuffers, as_before
from plait.runtime.held import count_held
from plait.runtime.masters import Masters
from plait.runtime.shares import Shares, Slices
from plait.schedule.action import Action, Kind
from plait.schedule.placement import Placement


@dataclass
class _Kept:
    """What a forward leaves for the backward."""

    inputs: dict[str, Tensor]
    """Read values as autograd leaves where a gradient goes back."""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """Of the outputs, from I to W."""
    nbytes: int = 0
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Buffers that the forward changed, as they were before it, for the recompute."""


@dataclass(frozen=True)
class StepData:
    """What a step is about: the data, the loss shares and the step's number for the random streams."""

    slices: Slices
    shares: Shares
    seed: int
    step: int
    wanted: frozenset[str] = frozenset()
    """Values to keep as results (outputs of an evaluation)."""


class Compute:
    """Runs actions. Values come from and go to ``exchange``."""

    def __init__(
        self, placement: Placement, stages: Mapping[int, Stage], specs: Mapping[str, TensorSpec], data: StepData,
        held: dict[tuple[int, int], int], masters: Masters | None = None,
    ) -> None:  # fmt: skip
        self.exchange = Exchange(placement, specs)
        self.results: dict[tuple[str, int], Tensor] = {}
        self.loss = 0.0
        """The share-weighted sum of the loss terms made here."""
        self.held_bytes = 0
        self._placement = placement
        self._stages = stages
        self._specs = specs
        self._data = data
        self._held = held
        self._masters = masters
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._changed = ChangedBuffers()

    def run(self, action: Action) -> None:
        """Do one action."""
        match action.kind:
            case Kind.FORWARD:
                self._forward(action.stage, action.micro_batch)
            case Kind.FORWARD_ONLY:
                self._forward_only(action.stage, action.micro_batch)
            case Kind.RECOMPUTE:
                self._recompute(action.stage, action.micro_batch)
            case Kind.BACKWARD:
                self._backward(action.stage, action.micro_batch)
            case Kind.INPUT_GRADIENT:
                self._input_gradient(action.stage, action.micro_batch)
            case Kind.WEIGHT_GRADIENT:
                self._weight_gradient(action.stage, action.micro_batch)
            case Kind.STEP:
                raise RunError("STEP is the engine's, not a stage's")

    def _forward(self, stage: int, micro_batch: int) -> None:
        kept = self._read(stage, micro_batch)
        self._run_stage(stage, micro_batch, kept)
        self._give(stage, micro_batch, kept.outputs)
        if self._placement.stages[stage].backward:
            self._keep(stage, micro_batch, kept)

    def _forward_only(self, stage: int, micro_batch: int) -> None:
        kept = self._read(stage, micro_batch)
        again = self._placement.stages[stage].recompute
        noting = self._changed.noting(stage, self._stages[stage]) if again else nullcontext(kept.buffers)
        with torch.no_grad(), noting as kept.buffers:
            outputs = self._call(stage, micro_batch, kept)
        self._give(stage, micro_batch, outputs)
        if again:
            kept.nbytes = sum(t.nbytes for t in kept.inputs.values())
            self._keep(stage, micro_batch, kept)

    def _recompute(self, stage: int, micro_batch: int) -> None:
        kept = self._drop(stage, micro_batch)
        with as_before(self._stages[stage], kept.buffers):
            self._run_stage(stage, micro_batch, kept)
        self._keep(stage, micro_batch, kept)

    def _backward(self, stage: int, micro_batch: int) -> None:
        kept = self._drop(stage, micro_batch)
        roots, gradients = self._roots(stage, micro_batch, kept)
        if roots:
            torch.autograd.backward(roots, gradients)
            self._collect(stage)
        self._send_back(stage, micro_batch, kept, {n: t.grad for n, t in kept.inputs.items()})

    def _input_gradient(self, stage: int, micro_batch: int) -> None:
        kept = self._kept[stage, micro_batch]
        roots, gradients = self._roots(stage, micro_batch, kept)
        wanted = {n: t for n, t in kept.inputs.items() if t.requires_grad}
        found: dict[str, Tensor | None] = {}
        if roots and wanted:
            made = torch.autograd.grad(roots, list(wanted.values()), gradients, retain_graph=True, allow_unused=True)
            found = dict(zip(wanted, made, strict=True))
        self._send_back(stage, micro_batch, kept, found)

    def _weight_gradient(self, stage: int, micro_batch: int) -> None:
        kept = self._drop(stage, micro_batch)
        parameters = [p for p in self._stages[stage].parameters() if p.requires_grad]
        roots = [kept.outputs[name] for name in kept.gradients]
        if not roots or not parameters:
            return
        made = torch.autograd.grad(roots, parameters, list(kept.gradients.values()), allow_unused=True)
        for parameter, gradient in zip(parameters, made, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._collect(stage)

    def _collect(self, stage: int) -> None:
        if self._masters is not None:
            self._masters.collect(self._stages[stage].parameters())

    def _read(self, stage: int, micro_batch: int) -> _Kept:
        return _Kept(self.exchange.take_values(stage, micro_batch))

    def _call(self, stage: int, micro_batch: int, kept: _Kept) -> dict[str, Tensor]:
        values = {**self._data.slices(micro_batch), **kept.inputs}
        stream = Stream(self._data.seed, self._data.step, micro_batch)
        outputs: dict[str, Tensor] = self._stages[stage](values, stream)
        return outputs

    def _run_stage(self, stage: int, micro_batch: int, kept: _Kept) -> None:
        """The forward with autograd, from leaves; fills the outputs and the bytes held."""
        if not self._placement.stages[stage].backward:
            with torch.no_grad():
                kept.outputs = self._call(stage, micro_batch, kept)
            return
        kept.inputs = {n: self._leaf(n, t) for n, t in kept.inputs.items()}
        with torch.enable_grad():
            kept.outputs, kept.nbytes = self._counted(stage, micro_batch, kept)

    def _counted(self, stage: int, micro_batch: int, kept: _Kept) -> tuple[dict[str, Tensor], int]:
        key = stage, self._placement.samples(micro_batch)
        if key in self._held:
            return self._call(stage, micro_batch, kept), self._held[key]
        outputs, self._held[key] = count_held(
            lambda: self._call(stage, micro_batch, kept), self._stages[stage].parameters()
        )
        return outputs, self._held[key]

    def _leaf(self, name: str, tensor: Tensor) -> Tensor:
        return tensor.detach().requires_grad_(True) if self._specs[name].gradient else tensor.detach()

    def _give(self, stage: int, micro_batch: int, outputs: Mapping[str, Tensor]) -> None:
        # Autocast may give another dtype on this kind of device than where the plan was made.
        given = {name: tensor.to(getattr(torch, self._specs[name].dtype)) for name, tensor in outputs.items()}
        self.exchange.put_values(stage, micro_batch, given)
        for name, tensor in given.items():
            share = self._data.shares.get((name, micro_batch), 0.0)
            if share:
                self.loss += share * float(tensor.detach())
            if name in self._data.wanted:
                self.results[name, micro_batch] = tensor.detach()

    def _keep(self, stage: int, micro_batch: int, kept: _Kept) -> None:
        self._kept[stage, micro_batch] = kept
        self.held_bytes += kept.nbytes

    def _drop(self, stage: int, micro_batch: int) -> _Kept:
        kept = self._kept.pop((stage, micro_batch))
        self.held_bytes -= kept.nbytes
        return kept

    def _roots(self, stage: int, micro_batch: int, kept: _Kept) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs that a gradient comes to, and these gradients.

        A loss term with a share of 0 is no root: its value may be NaN (a mean over no labels), and 0 * NaN is NaN.
        """
        found = self.exchange.take_gradients(stage, micro_batch)
        for name, tensor in kept.outputs.items():
            share = self._data.shares.get((name, micro_batch), 0.0)
            if share:
                seed = torch.full_like(tensor, share)
                found[name] = found[name] + seed if name in found else seed
        outputs = kept.outputs
        kept.gradients = {n: g.to(outputs[n].dtype) for n, g in found.items() if outputs[n].requires_grad}
        return [kept.outputs[n] for n in kept.gradients], list(kept.gradients.values())

    def _send_back(self, stage: int, micro_batch: int, kept: _Kept, found: Mapping[str, Tensor | None]) -> None:
        """Gradients of the inputs to where they came from; an unused input's is zero."""
        gradients = {}
        for name, tensor in kept.inputs.items():
            if tensor.requires_grad:
                gradient = found.get(name)
                gradients[name] = torch.zeros_like(tensor) if gradient is None else gradient
        self.exchange.put_gradients(stage, micro_batch, gradients)

    @property
    def finished(self) -> bool:
        """Whether everything that was kept or given has been used."""
        return not (self._kept or self.exchange.values or self.exchange.gradients)

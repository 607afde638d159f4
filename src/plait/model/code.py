"""Layers as modules that run: the user's own modules under their own paths, and the glue between them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.casting import cast_inputs, running
from plait.model.precision import Precision
from plait.model.steps import Step, find_module, release
from plait.model.streams import Stream, undisturbed
from plait.model.tape import Context, Kind, Tape


@dataclass(frozen=True)
class LayerNodes:
    """A layer as nodes of the tape: all it runs (repeated glue included), and what it reads and writes, by name."""

    name: str
    position: int
    """In the graph; it keys the random stream."""
    nodes: tuple[int, ...]
    inputs: Mapping[str, int]
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    random: bool


class _Holder(nn.Module):
    """Stands where the model has a module of which only a part is needed here."""


class LayerCode(nn.Module):
    """One or several layers. Submodules stand under the model's own paths; parameters are the model's own objects.

    ``inputs`` are the data inputs and ``reads`` the other layers' values that ``forward`` needs, ``writes`` what
    it returns.
    """

    def __init__(
        self,
        model: nn.Module,
        tape: Tape,
        layers: Sequence[LayerNodes],
        writes: Collection[str],
        canonical: Mapping[str, str],
        precision: Precision = Precision.FP32,
    ) -> None:
        super().__init__()
        made = {name for layer in layers for name in layer.writes}
        self._given = {n: i for layer in layers for n, i in layer.inputs.items()}
        self._inputs = tuple(self._given)
        reads = {n: i for layer in layers for n, i in layer.reads.items() if n not in made}
        self._given |= reads
        self._reads = tuple(reads)
        self._written = {n: i for layer in layers for n, i in layer.writes.items() if n in writes}
        self._canonical = dict(canonical)
        self._precision = precision
        self._sizes = [
            (name, form.batch_dims[0], int(form.dims[form.batch_dims[0]].slope))
            for name, number in self._given.items()
            if (form := tape.nodes[number].form) is not None and form.per_sample
        ]
        self._layer_names = ", ".join(layer.name for layer in layers)
        _graft(self, model, tape, layers)
        self._parts = _steps(self, tape, layers, set(self._given.values()))
        release([step for _, steps in self._parts for step in steps], set(self._written.values()))
        self._random = any(layer.random for layer in layers)
        self.training = model.training  # its own alone: the user may keep some modules in evaluation mode

    @property
    def inputs(self) -> tuple[str, ...]:
        """Data inputs that ``forward`` reads."""
        return self._inputs

    @property
    def reads(self) -> tuple[str, ...]:
        """Values of other layers that ``forward`` reads."""
        return self._reads

    @property
    def writes(self) -> tuple[str, ...]:
        """Values that ``forward`` returns."""
        return tuple(self._written)

    def forward(self, values: Mapping[str, Tensor], stream: Stream | None = None) -> dict[str, Tensor]:
        """The written values for inputs and read values, by name; dropout follows ``stream`` where it is given."""
        values = {**values, **cast_inputs(self._precision, {n: values[n] for n in self._inputs if n in values})}
        device = self._device(values[name] for name in self._given if name in values)
        with running(self._precision, device):
            if stream is None or not (self._random and self.training):
                return self._run(values, None)
            with undisturbed():
                return self._run(values, stream)

    def _run(self, values: Mapping[str, Tensor], stream: Stream | None) -> dict[str, Tensor]:
        try:
            found = {number: values[name] for name, number in self._given.items()}
        except KeyError as error:
            raise CaptureError(f"{self._layer_names}: the value {error.args[0]!r} is not given") from None
        context = Context(self._samples(values), self._device(found.values()), self.training)
        for layer, steps in self._parts:
            if stream is not None and layer is not None:
                stream.seed_layer(layer)
            for step in steps:
                step.run(found, context)
        return {name: found[number] for name, number in self._written.items()}

    def _samples(self, values: Mapping[str, Tensor]) -> int:
        samples = -1
        for name, dim, factor in self._sizes:
            count = values[name].shape[dim] // factor
            if samples not in (-1, count):
                raise CaptureError(f"{self._layer_names}: {name!r} holds {count} samples, another value {samples}")
            samples = count
        return samples

    def _device(self, given: Iterable[Tensor]) -> torch.device:
        return next((t.device for t in given), torch.device("cpu"))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters under their canonical names: a tied one has the same name in every stage that uses it."""
        for name, parameter in super().named_parameters("", recurse, remove_duplicate):
            own = self._canonical.get(name, name)
            yield (f"{prefix}.{own}" if prefix else own), parameter


def _graft(root: nn.Module, model: nn.Module, tape: Tape, layers: Sequence[LayerNodes]) -> None:
    """Put the model's modules, and the parameters and buffers that glue reads, under ``root`` at their own paths."""
    nodes = [tape.nodes[n] for n in sorted({n for layer in layers for n in layer.nodes})]
    paths = sorted({path for n in nodes for path in n.modules}, key=lambda p: (p.count("."), p))
    for path in paths:
        parent, _, name = path.rpartition(".")
        _holder(root, parent)._modules.setdefault(name, find_module(model, path))
    for node in nodes:
        if node.kind not in (Kind.PARAMETER, Kind.BUFFER):
            continue
        parent, _, name = str(node.target).rpartition(".")
        owner, source = _holder(root, parent), find_module(model, parent)
        if node.kind is Kind.PARAMETER:
            owner._parameters.setdefault(name, source._parameters[name])
        elif name not in owner._buffers:
            owner.register_buffer(name, source._buffers[name], name not in source._non_persistent_buffers_set)


def _holder(root: nn.Module, path: str) -> nn.Module:
    for part in path.split(".") if path else ():
        found = root._modules.get(part)
        if found is None:
            found = root._modules[part] = _Holder()
        root = found
    return root


def _steps(
    root: nn.Module, tape: Tape, layers: Sequence[LayerNodes], given: set[int]
) -> list[tuple[int | None, list[Step]]]:
    """Per layer its position where it draws random numbers, and its steps; repeated glue runs once."""
    done = set(given)
    parts: list[tuple[int | None, list[Step]]] = []
    for layer in layers:
        fresh = [n for n in layer.nodes if n not in done]
        done.update(fresh)
        steps = [Step(tape.nodes[n], root) for n in fresh]
        parts.append((layer.position if layer.random else None, steps))
    return parts


def runner(model: nn.Module, tape: Tape, number: int) -> Callable[[Mapping[str, Tensor], int], Tensor]:
    """A function of the inputs and the number of samples that gives the value of a node that no layer owns."""
    nodes = [tape.nodes[n] for n in tape.ancestors([number])]
    steps = [Step(node, model) for node in nodes if node.kind is not Kind.INPUT]

    def run(inputs: Mapping[str, Tensor], samples: int) -> Tensor:
        values = {n.number: inputs[n.target] for n in nodes if n.kind is Kind.INPUT}
        device = next((t.device for t in values.values()), torch.device("cpu"))
        with torch.no_grad():
            for step in steps:
                step.run(values, Context(samples, device, training=False))
        return values[number]

    return run

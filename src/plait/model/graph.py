"""BranchGraph: what a model computes, as layers in branches and the values that flow between them.

This module imports no torch: planning works where torch is not installed.
"""

import hashlib
import math
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from plait.files import FileValue, Value
from plait.model.precision import Precision

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex64": 8,
}  # fmt: skip
"""Bytes of one item, by dtype name as in ``str(tensor.dtype)`` without ``torch.``."""


class Scope(StrEnum):
    """How a result over the global batch follows from results over micro-batches."""

    MICROBATCH = "microbatch"
    """A mean of micro-batch means (weighted by samples where micro-batches are unequal)."""
    WEIGHTED = "weighted"
    """A sum over micro-batches divided by a count known from the inputs: a token mean."""
    BATCH = "batch"
    """Needs every micro-batch at once: a contrastive loss."""


class TensorSpec(Value):
    """A tensor's form. ``shape`` is that of one sample, the batch dimension kept at its size for one sample.

    A tensor over ``n`` samples has ``shape`` with ``shape[batch_dim]`` multiplied by ``n``;
    ``batch_dim`` is None for a tensor that does not depend on the number of samples.
    """

    shape: tuple[int, ...]
    dtype: str
    batch_dim: int | None = 0
    gradient: bool = False
    """Whether a gradient of the loss flows back through it."""

    def shape_for(self, samples: int) -> tuple[int, ...]:
        """The shape over ``samples`` samples."""
        return tuple(n * samples if d == self.batch_dim else n for d, n in enumerate(self.shape))

    def nbytes(self, samples: int) -> int:
        """Bytes over ``samples`` samples."""
        return math.prod(self.shape_for(samples)) * ITEM_BYTES[self.dtype]


class Parameter(Value):
    """A parameter under its original name. ``shape`` in items."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    master: str | None = None
    """The dtype of its master copy, which the optimizer steps; its gradient is summed in it too."""

    @property
    def nbytes(self) -> int:
        """Bytes of the parameter itself."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def learning_nbytes(self) -> int:
        """Bytes of what the optimizer steps, as of its gradient: the master copy, or the parameter itself."""
        return math.prod(self.shape) * ITEM_BYTES[self.master or self.dtype]


class Layer(Value):
    """The finest unit that partitioning may cut between: modules of the model and the glue around them."""

    name: str
    branch: str
    modules: tuple[str, ...] = ()
    """Paths of the model's own modules that it calls, in order; empty where it is glue alone."""
    scope: Literal[Scope.MICROBATCH, Scope.BATCH] = Scope.MICROBATCH
    """``batch`` where the forward needs every micro-batch at once."""
    inputs: tuple[str, ...] = ()
    """Names of the data inputs that it reads."""
    reads: tuple[str, ...] = ()
    """Values of other layers that it reads."""
    writes: tuple[str, ...] = ()
    """Values that it makes for other layers, for the loss or as outputs."""
    parameters: tuple[Parameter, ...] = ()
    """Those it uses; a tied parameter is listed, under one name, in every layer that uses it."""
    buffers: tuple[str, ...] = ()
    flops: float = 0.0
    """Of the forward, per sample."""
    random: bool = False
    """Whether it draws random numbers while training."""
    signature: str = ""
    """Equal for layers of equal cost, so that each kind is profiled once."""

    @property
    def trainable(self) -> bool:
        """Whether any of its parameters gets a gradient."""
        return any(p.trainable for p in self.parameters)


class Backward(NamedTuple):
    """Which halves of a backward a layer needs: none, if it is frozen and nothing before it learns."""

    inputs: bool
    """I: something that it reads wants a gradient."""
    weights: bool
    """W: it has parameters that learn."""


class Loss(Value):
    """One term of the loss: ``total = sum(coefficient * term)``. The term is a scalar value of a layer."""

    value: str
    scope: Scope
    coefficient: float = 1.0
    count: str = ""
    """For ``weighted``: what the terms are weighted by, in words, for people."""
    told: bool = False
    """Whether the user gives the scope: it holds then also where its own operations mix samples."""


class BranchGraph(FileValue, kind="plait-graph/1"):
    """Layers in topological order, the values between them, the data inputs and the loss."""

    format: str = "plait-graph/1"
    model: str
    """The model's class, for people."""
    precision: Precision = Precision.FP32
    """What its values' and parameters' dtypes are for; inputs have the dtypes of the data."""
    inputs: dict[str, TensorSpec]
    values: dict[str, TensorSpec]
    layers: tuple[Layer, ...]
    losses: tuple[Loss, ...] = ()
    outputs: dict[str, str] = Field(default_factory=dict)
    """Outputs asked for by the user: the name they gave → the value."""
    mixing: tuple[str, ...] = ()
    """Operations found, by trying, to mix samples where no shape shows it; ``retrace`` needs them."""
    by_hand: bool = False
    """Whether the layers are parts of the user's description (``plait.Branches``), not found by tracing."""
    notes: tuple[str, ...] = ()
    """What the user should know: batch-mixing layers, unused parameters."""

    @model_validator(mode="after")
    def _check(self) -> "BranchGraph":
        made: set[str] = set()
        names: set[str] = set()
        for layer in self.layers:
            if layer.name in names:
                raise ValueError(f"layers: {layer.name!r} stands twice")
            names.add(layer.name)
            self._check_layer(layer, made)
            made |= set(layer.writes)
        missing = [v for v in (*(t.value for t in self.losses), *self.outputs.values()) if v not in made]
        if missing:
            raise ValueError(f"losses, outputs: no layer writes {', '.join(missing)}")
        return self

    def _check_layer(self, layer: Layer, made: set[str]) -> None:
        for value in layer.reads:
            if value not in made:
                raise ValueError(f"layer {layer.name}: reads {value!r}, which no earlier layer writes")
        for value in layer.writes:
            if value in made:
                raise ValueError(f"layer {layer.name}: writes {value!r}, which an earlier layer writes too")
            if value not in self.values:
                raise ValueError(f"layer {layer.name}: writes {value!r}, which is not among the values")
        for name in layer.inputs:
            if name not in self.inputs:
                raise ValueError(f"layer {layer.name}: reads the input {name!r}, which is not among the inputs")

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def producers(self) -> dict[str, str]:
        """Value → the layer that writes it."""
        return {value: layer.name for layer in self.layers for value in layer.writes}

    @cached_property
    def branches(self) -> dict[str, tuple[Layer, ...]]:
        """Branch → its layers in order."""
        found: dict[str, list[Layer]] = {}
        for layer in self.layers:
            found.setdefault(layer.branch, []).append(layer)
        return {name: tuple(layers) for name, layers in found.items()}

    @cached_property
    def interactions(self) -> tuple[tuple[str, str, str], ...]:
        """(value, layer that writes it, layer that reads it) for each edge that crosses branches."""
        return tuple(
            (value, self.producers[value], layer.name)
            for layer in self.layers
            for value in layer.reads
            if self.by_name[self.producers[value]].branch != layer.branch
        )

    def backward(self, layer: str) -> Backward:
        """Which halves of a backward ``layer`` needs; none where the loss does not depend on what it writes."""
        found = self.by_name[layer]
        reached = any(self.values[v].gradient for v in found.writes)
        return Backward(reached and any(self.values[v].gradient for v in found.reads), reached and found.trainable)

    def parameters(self, layers: Iterable[str] | None = None) -> dict[str, Parameter]:
        """Parameters of ``layers`` (all by default) by name, a tied one once."""
        chosen = self.layers if layers is None else [self.by_name[name] for name in layers]
        return {p.name: p for layer in chosen for p in layer.parameters}

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with anything a plan relies on, but not with weights or batch size."""
        parts = [
            (x.name, x.scope, x.inputs, x.reads, x.writes, tuple((p.name, p.shape, p.dtype) for p in x.parameters))
            for x in self.layers
        ]
        specs = sorted((n, s.shape, s.dtype, s.batch_dim) for n, s in (self.values | self.inputs).items())
        text = repr((parts, specs, [(t.value, t.scope, t.coefficient) for t in self.losses]))
        text += "" if self.precision is Precision.FP32 else self.precision
        return hashlib.sha256(text.encode()).hexdigest()[:12]

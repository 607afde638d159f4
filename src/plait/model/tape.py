"""The tape: a model's operations in order, valid for any number of samples.

A node is an input, a parameter, a buffer, a constant, one tensor operation, or one call of a layer module.
What depends on the number of samples is kept as a line through two exports (``slope * samples + offset``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch.utils import _pytree as pytree

from plait.model.graph import TensorSpec


class Kind(StrEnum):
    """What a node is."""

    INPUT = "input"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    CONSTANT = "constant"
    OP = "op"
    CALL = "call"
    PART = "part"
    """A part of a description by hand."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of an earlier node, by its number on the tape."""

    node: int


@dataclass(frozen=True, slots=True)
class Context:
    """What an operation may depend on beside its arguments."""

    samples: int
    device: torch.device
    training: bool


@dataclass(frozen=True, slots=True)
class Line:
    """The number ``slope * samples + offset``."""

    slope: float
    offset: float
    whole: bool = True

    def at(self, context: Context) -> int | float:
        """Its value for a number of samples."""
        value = self.slope * context.samples + self.offset
        return round(value) if self.whole else value


@dataclass(frozen=True, slots=True)
class Here:
    """The device that the stage is on."""

    def at(self, context: Context) -> torch.device:
        """The device."""
        return context.device


@dataclass(frozen=True, slots=True)
class WhileTraining:
    """A value that holds in training mode, and the one in evaluation mode."""

    on: Any
    off: Any

    def at(self, context: Context) -> Any:
        """The value of the current mode."""
        return self.on if context.training else self.off


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor's dimensions, each a line over samples, and its dtype."""

    dims: tuple[Line, ...]
    dtype: str

    @property
    def batch_dims(self) -> tuple[int, ...]:
        """Dimensions that change with the number of samples."""
        return tuple(d for d, line in enumerate(self.dims) if line.slope)

    @property
    def regular(self) -> bool:
        """Whether at most one dimension changes, and in proportion."""
        return len(self.batch_dims) <= 1 and all(not line.slope or not line.offset for line in self.dims)

    @property
    def per_sample(self) -> bool:
        """Whether it can hold one entry (or several) for each sample."""
        return self.regular and len(self.batch_dims) == 1

    def spec(self, gradient: bool = False) -> TensorSpec:
        """As a TensorSpec; only for a regular form."""
        dim = self.batch_dims[0] if self.batch_dims else None
        sizes = tuple(int(line.slope or line.offset) for line in self.dims)
        return TensorSpec(shape=sizes, dtype=self.dtype, batch_dim=dim, gradient=gradient)


@dataclass(frozen=True)
class Node:
    """One entry of the tape. ``target`` is a name (sources), a module's path (CALL) or what to call (OP, PART)."""

    number: int
    name: str
    kind: Kind
    target: Any
    leaves: tuple[Any, ...] = ()
    """Arguments, flattened: constants, Ref, Line, Here, WhileTraining."""
    spec: pytree.TreeSpec | None = None
    """How the leaves make up (args, kwargs)."""
    form: Form | None = None
    """The result's, where it is a tensor."""
    home: str = ""
    """Path of the module whose code it stands in."""
    line: str = ""
    """File and line, for messages."""
    gradient: bool = True
    """False inside torch.no_grad()."""

    @property
    def arguments(self) -> Iterator[int]:
        """Numbers of the nodes that it reads."""
        return (leaf.node for leaf in self.leaves if isinstance(leaf, Ref))

    @property
    def is_source(self) -> bool:
        """Whether it computes nothing."""
        return self.kind not in (Kind.OP, Kind.CALL, Kind.PART)

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the model's modules that it calls."""
        if self.kind is Kind.PART:
            return tuple(self.target.modules)
        return (str(self.target),) if self.kind is Kind.CALL else ()


@dataclass(frozen=True)
class Tape:
    """Nodes in order, and which of them are the loss and the outputs."""

    nodes: tuple[Node, ...]
    loss: int | None
    outputs: dict[str, int] = field(default_factory=dict)

    def ancestors(self, wanted: Sequence[int]) -> list[int]:
        """Numbers of ``wanted`` and of all that they need, in order."""
        return self.ancestors_until(wanted, lambda _: False)

    def ancestors_until(self, wanted: Sequence[int], stop: Callable[[int], bool]) -> list[int]:
        """Like ``ancestors``, but without what stands at or before a node where ``stop`` holds."""
        found: set[int] = set()
        waiting = [n for n in wanted if not stop(n)]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [n for n in self.nodes[number].arguments if not stop(n)]
        return sorted(found)

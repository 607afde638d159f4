"""Values on their way between the stages of a rank and the transport: per edge and micro-batch, each taken once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from plait.model.graph import TensorSpec
from plait.schedule.action import ALL
from plait.schedule.placement import Edge, Placement

Box = dict[tuple[int, int], dict[str, Tensor]]
"""(edge, micro-batch) → tensors by value name."""


class Exchange:
    """Where forwards leave values and backwards leave gradients, and where the next stage or the transport takes them.

    At a stage of batch scope the micro-batches' values are joined along their batch dimension, in order, and the
    gradients are divided again.
    """

    def __init__(self, placement: Placement, specs: Mapping[str, TensorSpec]) -> None:
        self._placement = placement
        self._specs = specs
        self.values: Box = {}
        self.gradients: Box = {}

    def put_values(self, stage: int, micro_batch: int, outputs: Mapping[str, Tensor]) -> None:
        """Leave a stage's outputs on all its edges."""
        for index, edge in self._edges(stage, outgoing=True):
            given = {name: outputs[name].detach() for name in edge.values}
            self._put(self.values, index, edge, micro_batch, given, summed=False)

    def take_values(self, stage: int, micro_batch: int) -> dict[str, Tensor]:
        """A stage's inputs from other stages."""
        found: dict[str, Tensor] = {}
        for index, edge in self._edges(stage, outgoing=False):
            found |= self._take(self.values, index, edge, micro_batch, edge.values, summed=False)
        return found

    def put_gradients(self, stage: int, micro_batch: int, gradients: Mapping[str, Tensor]) -> None:
        """Leave the gradients of a stage's inputs on the edges that they came by."""
        for index, edge in self._edges(stage, outgoing=False):
            if edge.gradient and self._placement.stages[edge.source].backward:
                given = {name: gradients[name] for name in self.gradient_names(edge)}
                self._put(self.gradients, index, edge, micro_batch, given, summed=True)

    def take_gradients(self, stage: int, micro_batch: int) -> dict[str, Tensor]:
        """The gradients of a stage's outputs, summed over all that read them."""
        found: dict[str, Tensor] = {}
        for index, edge in self._edges(stage, outgoing=True):
            if edge.gradient and self._placement.stages[edge.target].backward:
                names = self.gradient_names(edge)
                taken = self._take(self.gradients, index, edge, micro_batch, names, summed=True)
                for name, gradient in taken.items():
                    found[name] = found[name] + gradient if name in found else gradient
        return found

    def gradient_names(self, edge: Edge) -> tuple[str, ...]:
        """Values of an edge whose gradients travel back."""
        return tuple(name for name in edge.values if self._specs[name].gradient)

    def _edges(self, stage: int, *, outgoing: bool) -> list[tuple[int, Edge]]:
        return [
            (index, edge)
            for index, edge in enumerate(self._placement.edges)
            if (edge.source if outgoing else edge.target) == stage
        ]

    def _keys(self, edge: Edge, micro_batch: int) -> Sequence[int]:
        """The edge's micro-batches that an action on ``micro_batch`` of one of its stages means."""
        stages = self._placement.stages
        if stages[edge.source].batch_scope and stages[edge.target].batch_scope:
            return (ALL,)
        return range(len(self._placement.micro_batches)) if micro_batch == ALL else (micro_batch,)

    def _put(
        self, box: Box, index: int, edge: Edge, micro_batch: int, given: Mapping[str, Tensor], *, summed: bool
    ) -> None:
        keys = self._keys(edge, micro_batch)
        if len(keys) == 1:
            box[index, keys[0]] = dict(given)
            return
        divided = {name: self._divide(name, tensor, summed=summed) for name, tensor in given.items()}
        for key in keys:
            box[index, key] = {name: parts[key] for name, parts in divided.items()}

    def _take(
        self, box: Box, index: int, edge: Edge, micro_batch: int, names: Sequence[str], *, summed: bool
    ) -> dict[str, Tensor]:
        parts = [box.pop((index, key)) for key in self._keys(edge, micro_batch)]
        if len(parts) == 1:
            return parts[0]
        return {name: self._join(name, [part[name] for part in parts], summed=summed) for name in names}

    def _join(self, name: str, parts: Sequence[Tensor], *, summed: bool) -> Tensor:
        dim = self._specs[name].batch_dim
        if dim is not None:
            return torch.cat(list(parts), dim)
        # A value that doesn't depend on the samples is the same in each micro-batch.
        return torch.stack(list(parts)).sum(0) if summed else parts[0]

    def _divide(self, name: str, whole: Tensor, *, summed: bool) -> list[Tensor]:
        spec, sizes = self._specs[name], self._placement.micro_batches
        if spec.batch_dim is not None:
            factor = spec.shape[spec.batch_dim]
            parts = torch.split(whole, [n * factor for n in sizes], spec.batch_dim)
            return [part.contiguous() for part in parts]
        if summed:
            # Micro-batch 0's copy stood for all of them, so it gets the whole gradient.
            return [whole, *(torch.zeros_like(whole) for _ in sizes[1:])]
        return [whole for _ in sizes]

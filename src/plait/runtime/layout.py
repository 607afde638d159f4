"""How a message's tensors lie in one flat buffer. Both ends derive it from the plan: no shape ever travels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from plait.model.graph import TensorSpec

ALIGN = 16
HEADER = 16
"""Bytes before the tensors; a paced transport writes the time of delivery there."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a message: where it lies and its form."""

    name: str
    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """All tensors of a message and the buffer's bytes."""

    slots: tuple[Slot, ...]
    total: int

    def pack(self, tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """A new buffer that holds the tensors."""
        buffer = torch.empty(self.total, dtype=torch.uint8, device=device)
        for slot in self.slots:
            self._view(buffer, slot).copy_(tensors[slot.name])
        return buffer

    def unpack(self, buffer: Tensor) -> dict[str, Tensor]:
        """The tensors, as views of the buffer."""
        return {slot.name: self._view(buffer, slot) for slot in self.slots}

    def empty(self, device: torch.device) -> Tensor:
        """A buffer to receive into."""
        return torch.empty(self.total, dtype=torch.uint8, device=device)

    def _view(self, buffer: Tensor, slot: Slot) -> Tensor:
        return buffer[slot.offset : slot.offset + slot.nbytes].view(slot.dtype).view(slot.shape)


def layout_of(specs: Mapping[str, TensorSpec], names: Sequence[str], samples: int) -> Layout:
    """The layout of the values ``names`` over ``samples`` samples."""
    slots, offset = [], HEADER
    for name in names:
        spec = specs[name]
        shape = spec.shape_for(samples)
        nbytes = spec.nbytes(samples)
        slots.append(Slot(name, offset, nbytes, shape, getattr(torch, spec.dtype)))
        offset += -(-nbytes // ALIGN) * ALIGN
    return Layout(tuple(slots), offset)

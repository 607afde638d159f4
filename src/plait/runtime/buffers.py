"""Buffers that a forward changes (running statistics): a forward that is repeated must not change them again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

Snapshot = Mapping[str, Tensor]
"""Buffer → its value before a forward; of those alone that the forward changed."""


@dataclass
class ChangedBuffers:
    """Knows, after the first forward of each stage in a step, which of its buffers a forward changes."""

    _names: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @contextmanager
    def noting(self, number: int, stage: nn.Module) -> Iterator[dict[str, Tensor]]:
        """Runs a forward of stage ``number``; what is given is filled with the changed buffers' values before it."""
        buffers = dict(stage.named_buffers())
        before = {name: buffers[name].detach().clone() for name in self._names.get(number, buffers)}
        found: dict[str, Tensor] = {}
        yield found
        if number not in self._names:
            self._names[number] = tuple(name for name, t in before.items() if not torch.equal(t, buffers[name]))
        found.update({name: before[name] for name in self._names[number]})


@contextmanager
def as_before(stage: nn.Module, snapshot: Snapshot) -> Iterator[None]:
    """Runs a forward of ``stage`` again, on the buffers of the first time; afterwards they are as they were."""
    buffers = {name: buffer for name, buffer in stage.named_buffers() if name in snapshot}
    present = {name: buffer.detach().clone() for name, buffer in buffers.items()}
    _set(buffers, snapshot)
    yield
    _set(buffers, present)


def _set(buffers: Mapping[str, Tensor], values: Snapshot) -> None:
    for name, buffer in buffers.items():
        buffer.data.copy_(values[name])  # through .data: autograd, which may have saved it, needs no copy of it

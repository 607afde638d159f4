"""What weights cost in memory: parameters, their gradients and the optimizer's state, in bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

from plait.model.graph import Parameter


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """Bytes held from step to step on each rank that holds these parameters."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All three together."""
        return self.parameters + self.gradients + self.optimizer


def fixed_bytes(parameters: Iterable[Parameter], optimizer_bytes_per_parameter_byte: float = 2.0) -> FixedBytes:
    """Bytes of ``parameters``; frozen ones have neither gradient nor optimizer state.

    The optimizer holds ``optimizer_bytes_per_parameter_byte`` for each byte that it steps: 2 for Adam, 1 for SGD with
    momentum, 0 for plain SGD. Master copies count as its own.
    """
    total = gradients = masters = 0.0
    for parameter in parameters:
        total += parameter.nbytes
        if parameter.trainable:
            gradients += parameter.learning_nbytes
            masters += parameter.learning_nbytes if parameter.master else 0
    return FixedBytes(total, gradients, masters + gradients * optimizer_bytes_per_parameter_byte)

"""Costs: what a layer costs on a device type. Two sources, one interface: measured tables and models."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from plait.cluster.spec import Device


class Source(StrEnum):
    """Where a figure comes from; the worse of two wins when figures are combined."""

    MEASURED = "measured"
    SCALED = "scaled"
    """Measured on another device type and scaled by relative speed."""
    MODELLED = "modelled"


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds of one layer on one micro-batch, and bytes held from its forward to its backward."""

    forward: float
    input_gradient: float
    weight_gradient: float
    held_bytes: float
    source: Source

    @property
    def backward(self) -> float:
        """Seconds of the whole backward."""
        return self.input_gradient + self.weight_gradient


class Costs(Protocol):
    """What planning asks. Implementations: ``cost.table`` (measured, scaled) and ``cost.roofline`` (modelled)."""

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        """The cost of a layer, by its name in the BranchGraph; raises CostError where it isn't known."""
        ...

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        """Seconds of the optimizer's step over that many bytes of parameters."""
        ...

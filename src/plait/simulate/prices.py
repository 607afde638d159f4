"""Prices: the seconds and bytes that a simulation needs, taken from a plan."""

from dataclasses import dataclass

from plait.schedule.action import Kind


@dataclass(frozen=True, slots=True)
class StagePrice:
    """One stage on one rank for one micro-batch size. Seconds and bytes."""

    forward: float
    input_gradient: float
    weight_gradient: float
    held_bytes: float
    """Activations held from F (or R) to the end of its backward."""
    kept_bytes: float
    """Inputs kept from N to R: what recomputing needs."""

    def seconds(self, kind: Kind) -> float:
        """Seconds of an action of this kind."""
        return {
            Kind.FORWARD: self.forward,
            Kind.FORWARD_ONLY: self.forward,
            Kind.RECOMPUTE: self.forward,
            Kind.BACKWARD: self.input_gradient + self.weight_gradient,
            Kind.INPUT_GRADIENT: self.input_gradient,
            Kind.WEIGHT_GRADIENT: self.weight_gradient,
            Kind.STEP: 0.0,
        }[kind]


@dataclass(frozen=True, slots=True)
class LinkPrice:
    """A way from sender to receiver, first come first served.

    A message of n bytes occupies it for ``n / bandwidth`` seconds and arrives ``latency`` seconds after that.
    """

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Prices:
    """All prices of a plan: stages by (stage, rank, samples), links by (sender, receiver)."""

    stages: dict[tuple[int, int, int], StagePrice]
    links: dict[tuple[int, int], LinkPrice]
    reductions: tuple[float, ...]
    """Seconds of each of the placement's reductions, once all its ranks have begun it."""
    step: tuple[float, ...]
    """Seconds of the optimizer's step per rank."""
    fixed_bytes: tuple[float, ...]
    """Weights, gradients and optimizer state per rank."""
    capacity: tuple[float, ...]
    """Bytes of memory per rank."""

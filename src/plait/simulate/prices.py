"""Prices: the seconds and bytes that a simulation needs, taken from a plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from plait.schedule.action import Kind
from plait.schedule.placement import Placement


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

    def times(self, samples: float) -> "StagePrice":
        """The price of so many times the work."""
        return StagePrice(
            self.forward * samples,
            self.input_gradient * samples,
            self.weight_gradient * samples,
            self.held_bytes * samples,
            self.kept_bytes * samples,
        )


@dataclass(frozen=True, slots=True)
class LinkPrice:
    """A way from sender to receiver, first come first served.

    A message of n bytes occupies it for ``n / bandwidth`` seconds and arrives ``latency`` seconds after that.
    """

    latency: float
    bandwidth: float


FREE = LinkPrice(0.0, inf)


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


def uniform(
    placement: Placement,
    price: StagePrice,
    link: LinkPrice = FREE,
    *,
    capacity: float = inf,
    overrides: Sequence[tuple[int, StagePrice]] = (),
) -> Prices:
    """The same price for every stage, per sample, and for every link; reductions and steps are free.

    To try schedules without a plan. ``overrides`` gives some stages (by number) their own price per sample.
    """
    own = dict(overrides)
    return Prices(
        stages={
            (stage, rank, placement.samples(m)): own.get(stage, price).times(placement.samples(m))
            for rank in range(placement.ranks)
            for stage, m in placement.work(rank)
        },
        links={(a, b): link for a in range(placement.ranks) for b in range(placement.ranks) if a != b},
        reductions=(0.0,) * len(placement.reductions),
        step=(0.0,) * placement.ranks,
        fixed_bytes=(0.0,) * placement.ranks,
        capacity=(capacity,) * placement.ranks,
    )

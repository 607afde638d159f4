"""Several sources of costs as one: the first that knows a figure gives it."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from plait.cluster.spec import Device
from plait.cost.costs import Costs, LayerCost
from plait.errors import CostError

T = TypeVar("T")


class Combined:
    """Costs from the first of ``sources`` that has them: tables before models."""

    def __init__(self, *sources: Costs) -> None:
        self._sources = sources

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        """The cost of a layer; raises CostError with every source's reason where none has it."""
        return _first(self._sources, lambda s: s.layer(layer, device, samples, tensor_parallel))

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        """Seconds of the optimizer's step; raises CostError where no source has them."""
        return _first(self._sources, lambda s: s.step_seconds(parameter_bytes, device))


def _first(sources: Sequence[Costs], ask: Callable[[Costs], T]) -> T:
    reasons = []
    for source in sources:
        try:
            return ask(source)
        except CostError as error:
            reasons.append(str(error))
    raise CostError("; ".join(reasons) or "no source of costs is given")

"""Measured costs: the profile file, and the Costs that it gives between and beyond the sizes measured."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, model_validator

from plait.cluster.spec import Device
from plait.cost.costs import LayerCost, Source
from plait.errors import CostError
from plait.files import FileValue, Value
from plait.model.graph import BranchGraph
from plait.units import Bytes, Seconds


class Timing(Value):
    """One layer measured on one micro-batch: seconds, and bytes held from its forward to its backward."""

    forward: Seconds
    input_gradient: Seconds
    weight_gradient: Seconds
    held: Bytes


Sizes = Annotated[dict[Annotated[int, Field(gt=0)], Timing], Field(min_length=1)]
"""Samples → what they cost."""


class CostTable(FileValue, kind="plait-profile/1"):
    """What was measured on one device type, on which machine, with which versions, when."""

    format: str = "plait-profile/1"
    device_type: str
    """``local`` for a CPU core; the catalog's name for a device that it knows."""
    model: str = ""
    machine: str = ""
    date: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    threads: int = 1
    layers: dict[str, Sizes]
    """A layer's kind (``kind_of``), signature or name → micro-batch size → what it costs."""
    step_seconds_per_byte: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds of the optimizer's step per byte of trainable parameters."""

    @model_validator(mode="after")
    def _check(self) -> "CostTable":
        if not self.layers:
            raise ValueError("layers: none is measured")
        return self


def kind_of(graph: BranchGraph, layer: str) -> str:
    """The key of layers that cost the same: the signature, and which inputs get a gradient where not all do.

    A layer that reads data, or stands behind a frozen one, has no input gradient (``~root``), so it costs less
    than another of the same signature.
    """
    found = graph.by_name[layer]
    flows = [graph.values[v].gradient for v in found.reads]
    mark = "" if flows and all(flows) else "~" + "".join(str(int(f)) for f in flows) if any(flows) else "~root"
    return (found.signature or found.name) + mark


class TableCosts:
    """Costs of a model's layers from a profile, on devices like the one measured.

    Between two measured sizes a cost lies on the straight line through them; beyond, on the line through the
    last two, which never falls as samples are added. Below the smallest size it is at least the smallest's
    share by samples. Times on a device of another speed are divided by it.
    """

    def __init__(self, graph: BranchGraph, table: CostTable) -> None:
        self._graph = graph
        self._table = table
        self._known: dict[tuple[str, int], Timing] = {}

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        """The cost of a layer; raises CostError where the profile doesn't hold it."""
        if device.like != self._table.device_type:
            raise CostError(
                f"layer {layer}: no cost on {device.type} ({device.name}), which is like {device.like}; the profile "
                f"was measured on {self._table.device_type}: profile a {device.like}, or say `like: "
                f"{self._table.device_type}` with a speed in device_types"
            )
        if tensor_parallel != 1:
            raise CostError(f"layer {layer}: the profile has no cost at tensor_parallel {tensor_parallel}, only at 1")
        timing, back = self._timing(layer, samples), any(self._graph.backward(layer))
        return LayerCost(
            forward=timing.forward / device.speed,
            input_gradient=timing.input_gradient / device.speed if back else 0.0,
            weight_gradient=timing.weight_gradient / device.speed if back else 0.0,
            held_bytes=timing.held if back else 0.0,
            source=Source.MEASURED if device.speed == 1 else Source.SCALED,
        )

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        """Seconds of the optimizer's step; raises CostError for a device that isn't like the one measured."""
        if device.like != self._table.device_type:
            raise CostError(
                f"optimizer step: no cost on {device.type} ({device.name}), which is like {device.like}; "
                f"the profile was measured on {self._table.device_type}"
            )
        return parameter_bytes * self._table.step_seconds_per_byte / device.speed

    def _timing(self, layer: str, samples: int) -> Timing:
        if (layer, samples) not in self._known:
            self._known[layer, samples] = between(self._sizes(layer), samples)
        return self._known[layer, samples]

    def _sizes(self, layer: str) -> Mapping[int, Timing]:
        if layer not in self._graph.by_name:
            raise CostError(f"layer {layer}: the model {self._graph.model} has no such layer")
        known, signature = self._table.layers, self._graph.by_name[layer].signature
        found = known.get(layer) or known.get(kind_of(self._graph, layer)) or known.get(signature)
        if not found:
            raise CostError(
                f"layer {layer} (signature {signature or 'none'}): the profile of {self._table.device_type} doesn't "
                f"hold it; was it made for another model ({self._table.model or 'unnamed'})?"
            )
        return found


def between(sizes: Mapping[int, Timing], samples: int) -> Timing:
    """The timing at ``samples``, on straight lines through the measured ``sizes``."""
    known = sorted(sizes)
    if samples in sizes:
        return sizes[samples]

    def at(column: Sequence[float]) -> float:
        return _line(known, column, samples)

    rows = [sizes[n] for n in known]
    return Timing(
        forward=at([t.forward for t in rows]),
        input_gradient=at([t.input_gradient for t in rows]),
        weight_gradient=at([t.weight_gradient for t in rows]),
        held=at([t.held for t in rows]),
    )


def _line(known: Sequence[int], column: Sequence[float], samples: int) -> float:
    if len(known) == 1:
        return column[0] * samples / known[0]
    right = min(max(bisect_left(known, samples), 1), len(known) - 1)
    left = right - 1
    slope = (column[right] - column[left]) / (known[right] - known[left])
    if samples > known[-1]:  # noise must not make more samples cheaper
        return column[-1] + max(slope, 0.0) * (samples - known[-1])
    if samples < known[0]:  # overhead makes few samples dearer than their share, never cheaper
        return max(column[0] - max(slope, 0.0) * (known[0] - samples), column[0] * samples / known[0])
    return column[left] + slope * (samples - known[left])

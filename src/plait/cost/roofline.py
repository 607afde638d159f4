"""Modelled costs, for device types that nobody has measured: a roofline over datasheet figures.

A layer's forward takes the longer of its arithmetic, at a share of the peak rate, and its traffic to memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from plait.cluster import catalog
from plait.cluster.spec import Cluster, Device
from plait.cost.costs import LayerCost, Source
from plait.errors import CostError
from plait.model.graph import BranchGraph, Layer

EFFICIENCY = 0.4
"""Share of the peak rate that dense layers reach in eager PyTorch: the middle of what is seen, 0.3 to 0.5."""

HELD_PER_OUTPUT = 16.0
"""A transformer block in eager mode holds about sixteen times its output for the backward (attention apart)."""

STEP_PASSES = 7.0
"""Adam reads parameter, gradient and two moments and writes three of them."""


@dataclass(frozen=True, slots=True)
class _Peak:
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class RooflineCosts:
    """Costs of a model's layers from ``Layer.flops`` and the catalog, or ``flops`` of the cluster's own types."""

    graph: BranchGraph
    own_flops: Mapping[str, float] = field(default_factory=dict)
    """Device type of the cluster file → its peak rate."""
    precision: Literal["fp32", "half"] = "fp32"
    efficiency: float = EFFICIENCY

    @classmethod
    def of(cls, graph: BranchGraph, cluster: Cluster) -> "RooflineCosts":
        """In the graph's precision, with the rates that the cluster file gives for its own device types."""
        own = {name: t.flops for name, t in cluster.device_types.items() if t.flops}
        return cls(graph, own, "half" if graph.precision.half else "fp32")

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        """The modelled cost of a layer; raises CostError where the device's rates aren't known."""
        if layer not in self.graph.by_name:
            raise CostError(f"layer {layer}: the model {self.graph.model} has no such layer")
        found = self.graph.by_name[layer]
        peak = self._peak(device)
        arithmetic = found.flops * samples / tensor_parallel / (self.efficiency * peak.flops)
        forward = max(arithmetic, self._traffic(found, samples) / tensor_parallel / peak.bandwidth)
        needs = self.graph.backward(layer)
        return LayerCost(
            forward=forward,
            input_gradient=forward if needs.inputs else 0.0,
            weight_gradient=forward * _learning_share(found) if needs.weights else 0.0,
            held_bytes=self._held(found, samples) if any(needs) else 0.0,
            source=Source.MODELLED,
        )

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        """Seconds of the optimizer's step, bound by memory; raises CostError where the bandwidth isn't known."""
        return STEP_PASSES * parameter_bytes / self._peak(device).bandwidth

    def _peak(self, device: Device) -> _Peak:
        sheet = catalog.DEVICES.get(device.like)
        own = self.own_flops.get(device.type)
        rate = sheet and (sheet.fp32 if self.precision == "fp32" else sheet.half)
        if sheet and (own or rate):
            return _Peak(own or (rate or 0.0) * device.speed, sheet.bandwidth * device.speed)
        if own:  # bytes per FLOP of the datasheets' accelerators: about one byte for fifteen
            return _Peak(own, own / 15)
        raise CostError(
            f"{device.type} ({device.name}): no {self.precision} rate is known for {device.like}; "
            "profile one, or give its `flops` in device_types"
        )

    def _traffic(self, layer: Layer, samples: int) -> float:
        """Bytes read and written by a forward: inputs, parameters, outputs, each once."""
        inputs = sum(self.graph.inputs[i].nbytes(samples) for i in layer.inputs)
        values = sum(self.graph.values[v].nbytes(samples) for v in (*layer.reads, *layer.writes))
        return inputs + values + sum(p.nbytes for p in layer.parameters)

    def _held(self, layer: Layer, samples: int) -> float:
        factor = HELD_PER_OUTPUT if layer.parameters else 1.0
        return factor * sum(self.graph.values[v].nbytes(samples) for v in layer.writes)


def _learning_share(layer: Layer) -> float:
    """Share of the layer's parameters that learn: those of an adapter are few, and so is their gradient's work."""
    total = sum(p.nbytes for p in layer.parameters)
    return sum(p.nbytes for p in layer.parameters if p.trainable) / total if total else 0.0

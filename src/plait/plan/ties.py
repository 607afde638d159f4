"""Weights that several layers share: what summing their gradients costs where these layers stand on several devices."""

from collections import Counter
from collections.abc import Iterable, Sequence

from plait.cluster.spec import Cluster, Device
from plait.cost.links import all_reduce_seconds, slowest_link
from plait.model.graph import BranchGraph, Layer, Parameter

Piece = tuple[Sequence[Layer], Sequence[Device]]
"""Layers, and the devices that hold them."""


def tied(graph: BranchGraph) -> dict[str, tuple[str, ...]]:
    """Each trained parameter that several layers share → these layers."""
    uses = Counter(name for layer in graph.layers for name in _trained(layer))
    shared = {name for name, count in uses.items() if count > 1}
    return {name: tuple(x.name for x in graph.layers if name in _trained(x)) for name in sorted(shared)}


def _trained(layer: Layer) -> dict[str, Parameter]:
    return {p.name: p for p in layer.parameters if p.trainable}


def sum_seconds(cluster: Cluster, shared: Iterable[str], pieces: Sequence[Piece]) -> float:
    """Seconds of a step's sums of the gradients of ``shared`` parameters that pieces on unlike devices hold."""
    groups: dict[tuple[str, ...], tuple[list[Device], float]] = {}
    for name in shared:
        holding = [(p, devices) for layers, devices in pieces for x in layers for p in x.parameters if p.name == name]
        if len({tuple(d.name for d in devices) for _, devices in holding}) > 1:
            devices = {d.name: d for _, some in holding for d in some}
            key = tuple(sorted(devices))
            nbytes = groups[key][1] if key in groups else 0.0
            groups[key] = list(devices.values()), nbytes + holding[0][0].learning_nbytes
    return sum(all_reduce_seconds(slowest_link(cluster, d), len(d), nbytes) for d, nbytes in groups.values())

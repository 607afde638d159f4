"""What a stage costs on a device: the sum of its layers' costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from plait.cluster.spec import Device
from plait.cost.costs import Costs, LayerCost, Source
from plait.model.graph import BranchGraph, TensorSpec

WORST_FIRST = (Source.MODELLED, Source.SCALED, Source.MEASURED)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of several tensors over n samples: ``per_sample * n + fixed``."""

    per_sample: float = 0.0
    fixed: float = 0.0

    def bytes(self, samples: int) -> float:
        """Bytes over ``samples`` samples."""
        return self.per_sample * samples + self.fixed


def size_of(specs: Iterable[TensorSpec]) -> Size:
    """The size of several tensors together."""
    per_sample = fixed = 0
    for spec in specs:
        nbytes = spec.nbytes(1)
        per_sample, fixed = (per_sample, fixed + nbytes) if spec.batch_dim is None else (per_sample + nbytes, fixed)
    return Size(per_sample, fixed)


def values_read(graph: BranchGraph, layers: Sequence[str]) -> tuple[str, ...]:
    """Values that ``layers`` read and that none of them writes, each once, in the order of the graph."""
    inside = set(layers)
    read = dict.fromkeys(v for name in layers for v in graph.by_name[name].reads)
    return tuple(v for v in read if graph.producers[v] not in inside)


def inputs_read(graph: BranchGraph, layers: Sequence[str]) -> tuple[str, ...]:
    """Data inputs that ``layers`` read, each once."""
    return tuple(dict.fromkeys(i for name in layers for i in graph.by_name[name].inputs))


def kept_size(graph: BranchGraph, layers: Sequence[str]) -> Size:
    """Size of what a stage of ``layers`` reads: what it keeps to run its forward again."""
    values = (graph.values[v] for v in values_read(graph, layers))
    return size_of(chain(values, (graph.inputs[i] for i in inputs_read(graph, layers))))


def worst(sources: Iterable[Source]) -> Source:
    """The least trustworthy of several sources; ``measured`` of none."""
    found = set(sources)
    return next((s for s in WORST_FIRST if s in found), Source.MEASURED)


def total(costs: Iterable[LayerCost]) -> LayerCost:
    """The cost of several layers together."""
    given = list(costs)
    return LayerCost(
        forward=sum(c.forward for c in given),
        input_gradient=sum(c.input_gradient for c in given),
        weight_gradient=sum(c.weight_gradient for c in given),
        held_bytes=sum(c.held_bytes for c in given),
        source=worst(c.source for c in given),
    )


def stage_cost(
    layers: Sequence[str], device: Device, samples: int, costs: Costs, *, backward: bool = True
) -> LayerCost:
    """The cost of a stage; one without a backward holds nothing. Raises CostError where a layer has no price."""
    cost = total(costs.layer(name, device, samples) for name in layers)
    return cost if backward else LayerCost(cost.forward, 0.0, 0.0, 0.0, cost.source)

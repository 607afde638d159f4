"""A BranchGraph as tables for people: branches, and the interactions between them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.model.graph import BranchGraph, Layer, Loss, Scope
from plait.units import show_bytes


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads and rows of text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(graph: BranchGraph) -> tuple[Table, ...]:
    """Tables of the branches, the interactions between them and the loss terms."""
    return branches(graph), interactions(graph), losses(graph)


def branches(graph: BranchGraph) -> Table:
    """One row for each branch: its layers, parameters, how many of these learn, forward FLOPs of one sample."""
    rows = tuple(
        (
            name,
            str(len(layers)),
            _span(layers),
            show_count(sum(math.prod(p.shape) for p in graph.parameters(x.name for x in layers).values())),
            show_count(_learning(graph, layers)),
            show_count(sum(layer.flops for layer in layers)),
        )
        for name, layers in graph.branches.items()
    )
    return Table(
        f"Branches of {graph.model}", ("branch", "layers", "from … to", "parameters", "trained", "FLOPs/sample"), rows
    )


def interactions(graph: BranchGraph) -> Table:
    """One row for each value that crosses branches: its bytes for one sample and the reader's scope."""
    rows = tuple(
        (
            value,
            source,
            target,
            show_bytes(graph.values[value].nbytes(1)) + ("" if graph.values[value].batch_dim is not None else " fixed"),
            str(graph.by_name[target].scope),
        )
        for value, source, target in graph.interactions
    )
    return Table("Interactions", ("tensor", "from", "to", "bytes/sample", "scope"), rows)


def losses(graph: BranchGraph) -> Table:
    """One row for each term of the loss."""
    rows = tuple((term.value, f"{term.coefficient:g}", str(term.scope), _weight(term)) for term in graph.losses)
    return Table("Loss", ("term", "coefficient", "scope", "weighted by"), rows)


def show_count(value: float) -> str:
    """A count for people, three digits: "1.2 M"."""
    steps = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
    factor, unit = next(((f, u) for f, u in steps if value >= f), (1.0, ""))
    return f"{value / factor:.3g}{unit}"


def _learning(graph: BranchGraph, layers: Sequence[Layer]) -> int:
    names = [layer.name for layer in layers if graph.backward(layer.name).weights]
    return sum(math.prod(p.shape) for p in graph.parameters(names).values() if p.trainable)


def _span(layers: Sequence[Layer]) -> str:
    return layers[0].name if len(layers) == 1 else f"{layers[0].name} … {layers[-1].name}"


def _weight(term: Loss) -> str:
    return "all samples at once" if term.scope is Scope.BATCH else term.count or "samples"

"""Repeated layers folded into one box each, so that a graph of hundreds of layers fits a page."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from plait.model.graph import BranchGraph, Layer

LONGEST = 8
"""Layers of the longest pattern that is looked for, as of three plain blocks and one with cross-attention."""
REPEATS = 3
"""Repeats below which each layer keeps a box of its own."""


@dataclass(frozen=True, slots=True)
class Box:
    """Layers of equal kind that stand as one in the picture."""

    branch: str
    layers: tuple[Layer, ...]

    @property
    def first(self) -> Layer:
        """The first of its layers."""
        return self.layers[0]


@dataclass(frozen=True, slots=True)
class Run:
    """Boxes below each other that repeat ``times`` as a pattern; 1 for boxes that stand for themselves."""

    boxes: tuple[Box, ...]
    times: int


def fold(graph: BranchGraph) -> dict[str, tuple[Run, ...]]:
    """Branch → its runs in order."""
    partners = _partners(graph)
    return {
        name: tuple(_runs(name, layers, [(x.signature or x.name, x.scope, partners[x.name]) for x in layers]))
        for name, layers in graph.branches.items()
    }


def _partners(graph: BranchGraph) -> dict[str, Hashable]:
    """Layer → branches that it reads from and that read from it: only layers alike in this are folded."""
    found: dict[str, set[tuple[str, str]]] = {layer.name: set() for layer in graph.layers}
    for _, source, target in graph.interactions:
        found[source].add(("to", graph.by_name[target].branch))
        found[target].add(("from", graph.by_name[source].branch))
    return {name: frozenset(partners) for name, partners in found.items()}


def _runs(branch: str, layers: Sequence[Layer], keys: Sequence[Hashable]) -> Iterator[Run]:
    start = 0
    while start < len(layers):
        length, times = _pattern(keys, start, LONGEST)
        end = start + length * times
        if length == 1:
            yield Run((Box(branch, tuple(layers[start:end])),), 1)
        else:
            parts = _parts(keys[start : start + length])
            boxes = [Box(branch, tuple(_picked(layers[start:end], length, part))) for part in parts]
            yield Run(tuple(boxes), times)
        start = end


def _parts(keys: Sequence[Hashable]) -> Iterator[range]:
    """A pattern's own runs of equal layers."""
    start = 0
    while start < len(keys):
        _, times = _pattern(keys, start, 1)
        yield range(start, start + times)
        start += times


def _picked(layers: Sequence[Layer], length: int, part: range) -> Iterator[Layer]:
    return (layer for index, layer in enumerate(layers) if index % length in part)


def _pattern(keys: Sequence[Hashable], start: int, longest: int) -> tuple[int, int]:
    """(length, repeats) of the pattern from ``start`` on that saves the most boxes; (1, 1) for none."""
    best = (1, 1)
    for length in range(1, longest + 1):
        pattern, times = keys[start : start + length], 1
        while keys[start + times * length : start + (times + 1) * length] == pattern and len(pattern) == length:
            times += 1
        if times >= REPEATS and length * (times - 1) > best[0] * (best[1] - 1):
            best = (length, times)
    return best

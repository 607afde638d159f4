"""Stages: consecutive layers as one module."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from plait.errors import CaptureError
from plait.model.code import LayerCode

if TYPE_CHECKING:
    from plait.model.capture import Captured


class Stage(LayerCode):
    """Layers that one device group holds; ``forward`` gives what other stages, the loss or the user need."""


def build_stage(captured: "Captured", layer_names: Sequence[str]) -> Stage:
    """The stage of these layers; raises CaptureError for an unknown layer, or where others stand between them.

    Its ``writes`` are the values that layers outside read, loss terms and outputs.
    """
    graph = captured.graph
    unknown = [name for name in layer_names if name not in graph.by_name]
    if unknown:
        raise CaptureError(f"no layer {unknown[0]!r}; the layers are {', '.join(graph.by_name)}")
    inside = set(layer_names)
    _check_gap(captured, inside)
    ordered = [layer for layer in captured.layers if layer.name in inside]
    return Stage(captured.model, captured.tape, ordered, _wanted(captured, inside), captured.canonical, graph.precision)


def _wanted(captured: "Captured", inside: Collection[str]) -> set[str]:
    graph = captured.graph
    wanted = {v for layer in graph.layers if layer.name not in inside for v in layer.reads}
    return wanted | {term.value for term in graph.losses} | set(graph.outputs.values())


def _check_gap(captured: "Captured", inside: Collection[str]) -> None:
    """A stage runs as one: nothing outside may need a part of it and be needed by another part."""
    graph = captured.graph
    after: set[str] = set()
    for layer in graph.layers:
        makers = {graph.producers[v] for v in layer.reads}
        if layer.name in inside and makers & after:
            raise CaptureError(
                f"the layers {', '.join(sorted(inside))} can't be one stage: {', '.join(sorted(makers & after))} "
                "needs some of them and is needed by others"
            )
        if layer.name not in inside and makers & (set(inside) | after):
            after.add(layer.name)

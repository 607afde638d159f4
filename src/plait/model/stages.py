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
    """The stage of these layers; raises CaptureError for an unknown layer.

    Its ``writes`` are the values that layers outside read, loss terms and outputs.
    """
    graph = captured.graph
    unknown = [name for name in layer_names if name not in graph.by_name]
    if unknown:
        raise CaptureError(f"no layer {unknown[0]!r}; the layers are {', '.join(graph.by_name)}")
    inside = set(layer_names)
    ordered = [layer for layer in captured.layers if layer.name in inside]
    return Stage(captured.model, captured.tape, ordered, _wanted(captured, inside), captured.canonical)


def _wanted(captured: "Captured", inside: Collection[str]) -> set[str]:
    graph = captured.graph
    wanted = {v for layer in graph.layers if layer.name not in inside for v in layer.reads}
    return wanted | {term.value for term in graph.losses} | set(graph.outputs.values())

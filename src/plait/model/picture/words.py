"""What is written in the picture: names made short, sizes, scopes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from plait.model.graph import BranchGraph, Layer, Scope
from plait.model.picture.fold import Box
from plait.model.tables import show_count
from plait.units import show_bytes


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text; ``style`` is its class in the picture."""

    text: str
    style: str


def title(box: Box) -> str:
    """A box's name: its layer's without the branch's path, or the first and the last of several."""
    names = [_within(layer.name, box.branch) for layer in box.layers]
    if len(names) == 1:
        return shorten(names[0], 30)
    parent, _, last = names[-1].rpartition(".")
    near = names[0].startswith(f"{parent}.")
    return f"{shorten(names[0], 20)} … {last if near else shorten(names[-1], 12)}"


def lines(box: Box, graph: BranchGraph) -> list[Words]:
    """What stands below the name: its size, the inputs that it reads, its losses and outputs."""
    written = {value for layer in box.layers for value in layer.writes}
    given = list(dict.fromkeys(name for layer in box.layers for name in layer.inputs))
    found = [Words(_size(box.layers, graph), "size")]
    if given:
        found.append(Words(shorten("reads " + ", ".join(given), 38, middle=False), "input"))
    for term in graph.losses:
        if term.value in written:
            factor = "" if term.coefficient == 1 else f"{term.coefficient:g} × "
            found.append(Words(f"{factor}{shorten(term.value, 22)} · scope {term.scope}", f"loss {term.scope}"))
    kept = [name for name, value in graph.outputs.items() if value in written]
    if kept:
        found.append(Words(shorten("output " + ", ".join(kept), 38, middle=False), "input"))
    return found


def edge_lines(values: Sequence[str], scope: Scope, graph: BranchGraph) -> tuple[Words, Words]:
    """An edge's tensor, or how many; its bytes for one sample, and the reader's scope."""
    name = shorten(values[0], 26) if len(values) == 1 else f"{len(values)} tensors"
    sizes = [graph.values[value].nbytes(1) for value in values]
    fixed = all(graph.values[value].batch_dim is None for value in values)
    each = "" if len(values) == 1 else " each" if len(set(sizes)) == 1 else " in all"
    size = show_bytes(sizes[0] if each != " in all" else sum(sizes))
    return Words(name, "tensor"), Words(f"{size}{' in all' if fixed else '/sample'}{each} · {scope}", f"bytes {scope}")


def frozen(layers: Sequence[Layer]) -> bool:
    """Whether they have parameters of which none gets a gradient."""
    return any(layer.parameters for layer in layers) and not any(layer.trainable for layer in layers)


def shorten(text: str, length: int, *, middle: bool = True) -> str:
    """``text`` in at most ``length`` characters, an ellipsis for what is left out."""
    if len(text) <= length:
        return text
    if not middle:
        return text[: length - 1] + "…"
    end = length * 2 // 3
    return text[: length - end - 1] + "…" + text[-end:]


def _within(name: str, branch: str) -> str:
    inside = name.removeprefix(f"{branch}.")
    return inside or name


def _size(layers: Sequence[Layer], graph: BranchGraph) -> str:
    """Of one layer; the layers of a box are alike."""
    first = layers[0]
    count = sum(math.prod(p.shape) for p in graph.parameters([first.name]).values())
    parts = [f"{show_count(count)} parameter{'' if count == 1 else 's'}" if count else "no parameters"]
    parts += (
        [f"{show_count(first.flops)}FLOP" if first.flops >= 1000 else f"{first.flops:g} FLOP"] if first.flops else []
    )
    parts += ["frozen"] if frozen(layers) else []
    times = f"{len(layers)} × " if len(layers) > 1 else ""
    return times + " · ".join(parts)

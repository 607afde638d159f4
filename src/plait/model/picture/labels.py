"""Where the labels of the edges stand: on their curves, clear of boxes and of each other."""

from dataclasses import dataclass

from plait.model.graph import BranchGraph
from plait.model.picture.place import HEAD, WIDTH, Placement
from plait.model.picture.route import route
from plait.model.picture.words import Words, edge_lines

LETTER = 5.9
"""Pixels of a letter at 11 pixels' size, generously."""
SHARES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82)
LIFTS = (0.0, -24.0, 24.0)


@dataclass(frozen=True, slots=True)
class Label:
    """Lines of text around ``x``, the first at height ``y``."""

    x: float
    y: float
    words: tuple[Words, ...]

    @property
    def left(self) -> float:
        """Of the longest line."""
        return self.x - self.half

    @property
    def half(self) -> float:
        """Half the width of the longest line."""
        return max(len(words.text) for words in self.words) * LETTER / 2


def labels(made: Placement, graph: BranchGraph) -> list[Label]:
    """One for each interaction, at the place on its curve, or close to it, that covers least."""
    found: list[Label] = []
    for edge in made.edges:
        if not edge.crosses:
            continue
        words, curve = edge_lines(edge.values, edge.scope, graph), route(edge)
        tried = [Label(x, y - 3 + lift, words) for lift in LIFTS for x, y in map(curve.at, SHARES)]
        found.append(min(tried, key=lambda label: _covered(label, made, found)))
    return found


def _covered(label: Label, made: Placement, others: list[Label]) -> float:
    """Square pixels of boxes and of other labels that it would cover."""
    own = (label.x - label.half, label.y - 12, label.x + label.half, label.y + 18)
    boxes = [(p.x, p.y - (HEAD if p.begins else 0), p.x + WIDTH, p.bottom) for p in made.boxes]
    texts = [(o.x - o.half, o.y - 12, o.x + o.half, o.y + 18) for o in others]
    return sum(_shared(own, other) for other in boxes + texts)


def _shared(one: tuple[float, float, float, float], two: tuple[float, float, float, float]) -> float:
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    return max(0.0, width) * max(0.0, height)

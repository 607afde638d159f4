"""Where each box stands: branches as columns, time downwards, a branch that joins others below and between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from plait.model.graph import BranchGraph, Scope
from plait.model.picture.fold import Box, Run, fold
from plait.model.picture.words import lines

WIDTH = 236.0
COLUMN = WIDTH + 164.0
"""Pixels between the left sides of neighbouring columns; the gap holds the labels of the edges."""
GAP = 16.0
HEAD = 26.0
"""Above a branch's first box: its name."""
JOIN = 58.0
"""At least so far below what it reads from another branch stands a box that reads it."""
LINE = 15.0
FRAME = 10.0


@dataclass(slots=True)
class Placed:
    """A box with its left upper corner and height, in pixels."""

    box: Box
    x: float
    y: float
    height: float
    begins: bool
    """Whether its branch begins with it."""

    @property
    def bottom(self) -> float:
        """Of its lower side."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """Of its centre line."""
        return self.x + WIDTH / 2


@dataclass(frozen=True, slots=True)
class Frame:
    """Around boxes that repeat together."""

    x: float
    y: float
    bottom: float
    times: int


@dataclass(frozen=True, slots=True)
class Edge:
    """Values that one box hands to another; ``scope`` is the reader's."""

    source: Placed
    target: Placed
    values: tuple[str, ...]
    scope: Scope
    crosses: bool
    """Whether it is an interaction, and not a connection over several layers of one branch."""
    slot: float = 0.0
    """From -1 to 1: where it arrives among the edges that come to the target from the same side."""


@dataclass(slots=True)
class Placement:
    """All boxes, frames and edges, from (0, 0) to (width, height)."""

    boxes: list[Placed] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    @property
    def width(self) -> float:
        """To the right side of the rightmost box."""
        return max(placed.x for placed in self.boxes) + WIDTH

    @property
    def height(self) -> float:
        """To the lower side of the lowest box or frame."""
        return max([placed.bottom for placed in self.boxes] + [frame.bottom for frame in self.frames])


def place(graph: BranchGraph) -> Placement:
    """The boxes of ``graph``, folded, each branch in a column or below the branches that it joins."""
    made = Placement()
    home: dict[str, Placed] = {}
    columns = fold(graph)
    order = {layer.name: i for i, layer in enumerate(graph.layers)}
    _stack(made, graph, columns, home, order)
    _spread(made, graph, columns)
    made.frames = [_frame(run, home) for runs in columns.values() for run in runs if run.times > 1]
    made.edges = _slotted(_edges(graph, home))
    return made


def _stack(
    made: Placement,
    graph: BranchGraph,
    columns: dict[str, tuple[Run, ...]],
    home: dict[str, Placed],
    order: dict[str, int],
) -> None:
    """Heights: each box below the one before it in its branch, and below what it reads from others."""
    last: dict[str, float] = {}
    framed = {id(box): run.times > 1 for runs in columns.values() for run in runs for box in run.boxes}
    boxes = sorted(
        (b for runs in columns.values() for run in runs for b in run.boxes), key=lambda b: order[b.first.name]
    )
    before: dict[str, Box] = {}
    for box in boxes:
        sources = [home[graph.producers[v]] for v in box.first.reads if graph.producers[v] in home]
        begins = box.branch not in last
        room = JOIN + (HEAD if begins else 0.0)
        others = [s.bottom + room for s in sources if s.box.branch != box.branch]
        extra = FRAME if not begins and framed[id(box)] != framed[id(before[box.branch])] else 0.0
        own = HEAD if begins else last[box.branch] + GAP + extra
        placed = Placed(box, 0.0, max([own, *others]), 12 + LINE * (1 + len(lines(box, graph))), begins)
        made.boxes.append(placed)
        home.update({layer.name: placed for layer in box.layers})
        last[box.branch], before[box.branch] = placed.bottom, box


def _spread(made: Placement, graph: BranchGraph, columns: dict[str, tuple[Run, ...]]) -> None:
    """Columns: a branch that reads others stands between them where there is room, each other one to the right."""
    taken: dict[str, tuple[float, float, float]] = {}
    for branch in columns:
        own = [placed for placed in made.boxes if placed.box.branch == branch]
        top, bottom = own[0].y - HEAD, max(placed.bottom for placed in own) + GAP
        wanted = _wanted(graph, branch, taken)
        free = wanted is not None and not any(
            abs(x - wanted) < COLUMN - 1 and top < b and t < bottom for x, t, b in taken.values()
        )
        x = wanted if free and wanted is not None else max((x + COLUMN for x, _, _ in taken.values()), default=0.0)
        taken[branch] = (x, top, bottom)
        for placed in own:
            placed.x = x


def _wanted(graph: BranchGraph, branch: str, taken: dict[str, tuple[float, float, float]]) -> float | None:
    sources = dict.fromkeys(
        graph.by_name[source].branch
        for _, source, target in graph.interactions
        if graph.by_name[target].branch == branch
    )
    places = [taken[name][0] for name in sources if name in taken]
    return sum(places) / len(places) if places else None


def _frame(run: Run, home: dict[str, Placed]) -> Frame:
    inside = [home[box.first.name] for box in run.boxes]
    return Frame(inside[0].x - FRAME, inside[0].y - FRAME, inside[-1].bottom + FRAME, run.times)


def _edges(graph: BranchGraph, home: dict[str, Placed]) -> list[Edge]:
    """Interactions, and connections that skip layers of their branch, gathered by the boxes at their ends."""
    found: dict[tuple[int, int], list[str]] = {}
    ends: dict[tuple[int, int], tuple[Placed, Placed]] = {}
    for value, source, target in _connections(graph):
        one, two = home[source], home[target]
        key = (id(one), id(two))
        ends[key] = (one, two)
        found.setdefault(key, []).append(value)
    return [
        Edge(one, two, tuple(dict.fromkeys(found[key])), two.box.first.scope, one.box.branch != two.box.branch)
        for key, (one, two) in ends.items()
    ]


def _slotted(edges: Sequence[Edge]) -> list[Edge]:
    """Edges into the same side of a box arrive apart, in the order of their sources from top to bottom."""
    sides: dict[tuple[int, bool], list[Edge]] = {}
    for edge in sorted(edges, key=lambda e: e.source.y):
        sides.setdefault((id(edge.target), edge.source.x < edge.target.x), []).append(edge)
    return [
        replace(edge, slot=2 * index / (len(side) - 1) - 1 if len(side) > 1 else 0.0)
        for side in sides.values()
        for index, edge in enumerate(side)
    ]


def _connections(graph: BranchGraph) -> Iterable[tuple[str, str, str]]:
    yield from graph.interactions
    for layers in graph.branches.values():
        yield from _skips(graph, [layer.name for layer in layers])


def _skips(graph: BranchGraph, layers: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    place = {name: i for i, name in enumerate(layers)}
    for name, index in place.items():
        for value in graph.by_name[name].reads:
            source = graph.producers[value]
            if place.get(source, index) < index - 1:
                yield value, source, name

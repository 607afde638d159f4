"""The way of each edge: a curve from a box's side to another box."""

from dataclasses import dataclass

from plait.model.picture.place import WIDTH, Edge

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A cubic Bézier curve by its four points, in pixels."""

    points: tuple[Point, Point, Point, Point]

    @property
    def path(self) -> str:
        """As SVG has it."""
        (a, b), *rest = self.points
        return f"M{a:.0f} {b:.0f}C" + " ".join(f"{x:.0f} {y:.0f}" for x, y in rest)

    @property
    def left(self) -> float:
        """No point of it is further left."""
        return min(x for x, _ in self.points)

    def at(self, share: float) -> Point:
        """The point after ``share`` (0 to 1) of the way."""
        rest = 1 - share
        weights = (rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3)
        x = sum(w * p[0] for w, p in zip(weights, self.points, strict=True))
        y = sum(w * p[1] for w, p in zip(weights, self.points, strict=True))
        return x, y


def route(edge: Edge) -> Curve:
    """Out of the source's side, into the target's top where its branch begins there, else into its side."""
    if not edge.crosses:
        return _around(edge)
    source, target = edge.source, edge.target
    if source.x == target.x:
        if target.begins and source.bottom <= target.y:
            return _straight((source.middle, source.bottom), (target.middle, target.y))
        return _around(edge)
    right = target.x > source.x
    start = (source.x + (WIDTH if right else 0), source.y + source.height / 2)
    if target.begins and target.y > source.bottom:
        end = (target.middle + (-1 if right else 1) * (52 + 24 * edge.slot), target.y)
        return Curve((start, (end[0], start[1]), (end[0], (start[1] + end[1]) / 2), end))
    end = (target.x + (0 if right else WIDTH), target.y + target.height * (0.5 + 0.32 * edge.slot))
    reach = abs(end[0] - start[0]) / 2 * (1 if right else -1)
    return Curve((start, (start[0] + reach, start[1]), (end[0] - reach, end[1]), end))


def _straight(start: Point, end: Point) -> Curve:
    middle = (start[1] + end[1]) / 2
    return Curve((start, (start[0], middle), (end[0], middle), end))


def _around(edge: Edge) -> Curve:
    """Along the left side of a column, past the boxes between."""
    source, target = edge.source, edge.target
    start, end = (source.x, source.y + source.height * 0.6), (target.x, target.y + target.height * 0.4)
    reach = min(60.0, 24 + abs(end[1] - start[1]) / 12)
    return Curve((start, (start[0] - reach, start[1]), (end[0] - reach, end[1]), end))

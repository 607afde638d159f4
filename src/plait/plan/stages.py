"""Balanced cuts: branches laid over the same slots so that the busiest slot is as little busy as possible.

A slot is a position in the pipeline: one device, or one of each replica's. Each branch is a strand, a chain of
layers, laid down the slots (first layers on slot 0) or up them (first layers on the last slot). It spans
neighbouring slots, not necessarily all of them. What a slot does for all strands together is its load.

Two strands are cut together, exactly, by dynamic programming over the slots; more, two at a time in turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

EXACT_LIMIT = 400_000
"""Cells of the table for two strands together, per slot; above, strands are cut in turns (it would take seconds)."""


@dataclass(frozen=True)
class Strand:
    """One branch's chain of layers, with what each costs on each slot, in seconds a step and bytes."""

    name: str
    seconds: Floats
    """(slots, layers): all a slot does in one step for a layer that it holds."""
    memory: Floats
    """(slots, layers): weights, gradients, state and activations in flight of each layer."""
    entry_seconds: Floats
    """(slots, slots, layers): [a, b, l]: the messages of one step where a stage on b begins with l after one on a."""
    entry_memory: Floats
    """(slots, layers): what a stage that begins with l keeps besides: its inputs, where it recomputes."""
    up: bool = False

    @property
    def layers(self) -> int:
        """How many layers."""
        return int(self.seconds.shape[1])


@dataclass(frozen=True, slots=True)
class Piece:
    """Layers ``first`` to ``end`` (exclusive) of a strand on a slot."""

    slot: int
    first: int
    end: int


@dataclass(frozen=True)
class Cuts:
    """Per strand its pieces, in the order of its layers; per slot its load in seconds and its bytes."""

    pieces: tuple[tuple[Piece, ...], ...]
    load: Floats
    memory: Floats

    @property
    def bottleneck(self) -> float:
        """The load of the busiest slot."""
        return float(self.load.max())


def balance(strands: Sequence[Strand], room: Floats, load: Floats | None = None) -> Cuts | None:
    """Cuts of least bottleneck within ``room`` bytes per slot, or None where none fits.

    ``load`` is what the slots do besides. Among cuts of the least bottleneck those of the least sum of squared
    loads are taken. Exact for one and two strands of up to some thirty layers each.
    """
    given = np.zeros(len(room)) if load is None else np.asarray(load, dtype=np.float64)
    tables = [_table(s) for s in strands]
    if len(tables) == 1 or (len(tables) == 2 and _cells(tables) <= EXACT_LIMIT):
        found = _cut(tables, given, room)
    else:
        found = _in_turns(tables, given, room)
    return None if found is None else _cuts(strands, tables, found, given)


@dataclass(frozen=True)
class _Table:
    """What a step from progress i to i' costs on each slot; progress counts layers taken in the order of slots."""

    seconds: Floats
    """(slots, layers + 1, layers + 1); infinite where the step isn't possible."""
    memory: Floats


def _cells(tables: Sequence[_Table]) -> int:
    return int(np.prod([t.seconds.shape[1] ** 2 for t in tables]))


def _table(strand: Strand) -> _Table:
    layers = strand.layers
    entry = _entries(strand)
    seconds = _between(strand.seconds, entry)
    memory = _between(strand.memory, strand.entry_memory)
    takes = np.triu(np.ones((layers + 1, layers + 1), dtype=bool), 1)
    seconds[:, ~takes], memory[:, ~takes] = np.inf, 0.0
    seconds[:, 0, 0] = seconds[:, layers, layers] = 0.0  # a slot before or after the strand holds none of it
    if strand.up:  # the first slot takes the last layers: progress i to i' takes layers L - i' to L - i
        seconds, memory = (x[:, ::-1, ::-1].swapaxes(1, 2) for x in (seconds, memory))
    return _Table(seconds, memory)


def _between(each: Floats, first: Floats) -> Floats:
    """[slot, a, b]: the sum of ``each`` over layers a to b, and what beginning with layer a costs besides."""
    slots = len(each)
    sums = np.concatenate([np.zeros((slots, 1)), np.cumsum(each, axis=1)], axis=1)
    begin = np.concatenate([first, np.zeros((slots, 1))], axis=1)
    total: Floats = sums[:, None, :] - sums[:, :, None] + begin[:, :, None]
    return total


def _entries(strand: Strand) -> Floats:
    """[slot, layer]: the messages that a stage beginning there gets from its neighbour; none at the root."""
    slots = strand.seconds.shape[0]
    here = np.arange(slots)
    before = here + (1 if strand.up else -1)
    inside = (before >= 0) & (before < slots)
    found = np.where(inside[:, None], strand.entry_seconds[before % slots, here], np.inf)
    found[:, 0] = 0.0
    return found


Steps = tuple[tuple[int, int], ...]
"""Per slot, the progress of one strand before and after it."""


def _cut(tables: Sequence[_Table], load: Floats, room: Floats) -> list[Steps] | None:
    """Steps of one or two strands: least bottleneck first, then the least sum of squares."""
    one = tables[0]
    two = tables[1] if len(tables) == 2 else _nothing(len(room))
    least = _solve(one, two, load, room, bound=None)
    if least is None:
        return None
    smooth = _solve(one, two, load, room, bound=least[0])
    return list((smooth or least)[1][: len(tables)])


def _nothing(slots: int) -> _Table:
    return _Table(np.zeros((slots, 1, 1)), np.zeros((slots, 1, 1)))


def _solve(
    one: _Table, two: _Table, load: Floats, room: Floats, bound: float | None
) -> tuple[float, tuple[Steps, Steps]] | None:
    """Over slots, over (progress of one, progress of two).

    Without ``bound``: the least possible maximum of loads. With it: the least sum of squares within the bound.
    """
    rows, columns = one.seconds.shape[1], two.seconds.shape[1]
    best = np.full((rows, columns), np.inf)
    best[0, 0] = 0.0
    came: list[NDArray[np.int64]] = []
    for slot in range(len(room)):
        costs = _costs(one, two, slot, load[slot], room[slot])
        total = _joined(best[:, :, None, None], costs, bound).reshape(rows * columns, rows, columns)
        source = total.argmin(axis=0)
        best = np.take_along_axis(total, source[None], axis=0)[0]
        came.append(source)
    if not np.isfinite(best[-1, -1]):
        return None
    return float(best[-1, -1]), _steps(came, rows, columns)


def _costs(one: _Table, two: _Table, slot: int, load: float, room: float) -> Floats:
    """[row before, column before, row, column]: what the slot does on the way, infinite where it lacks memory."""
    seconds: Floats = one.seconds[slot][:, None, :, None] + two.seconds[slot][None, :, None, :] + load
    memory = one.memory[slot][:, None, :, None] + two.memory[slot][None, :, None, :]
    return np.where(memory <= room, seconds, np.inf)


def _joined(before: Floats, costs: Floats, bound: float | None) -> Floats:
    if bound is None:
        return np.maximum(before, costs)
    within = costs <= bound * (1 + 1e-12)
    return np.where(within, before + np.square(np.where(within, costs, 0.0)), np.inf)


def _steps(came: Sequence[NDArray[np.int64]], rows: int, columns: int) -> tuple[Steps, Steps]:
    row, column = rows - 1, columns - 1
    ones: list[tuple[int, int]] = []
    twos: list[tuple[int, int]] = []
    for source in reversed(came):
        before_row, before_column = divmod(int(source[row, column]), columns)
        ones.append((before_row, row))
        twos.append((before_column, column))
        row, column = before_row, before_column
    return tuple(reversed(ones)), tuple(reversed(twos))


def _in_turns(tables: Sequence[_Table], load: Floats, room: Floats) -> list[Steps] | None:
    """Each strand alone on what the former leave, then two (or one) at a time while that lowers the loads."""
    found: list[Steps] = []
    for index, table in enumerate(tables):
        alone = _cut([table], *_rest(tables[:index], found, load, room))
        if alone is None:
            return None
        found.append(alone[0])
    groups: list[tuple[int, ...]] = [(i,) for i in range(len(tables))]
    groups += [g for g in combinations(range(len(tables)), 2) if _cells([tables[i] for i in g]) <= EXACT_LIMIT]
    for _ in range(20):
        before = _worth(tables, found, load)
        for group in groups:
            others = [i for i in range(len(tables)) if i not in group]
            rest = _rest([tables[i] for i in others], [found[i] for i in others], load, room)
            again = _cut([tables[i] for i in group], *rest)
            for index, steps in zip(group, again or (), strict=bool(again)):
                found[index] = steps
        if _worth(tables, found, load) >= before:
            break
    return found


def _rest(tables: Sequence[_Table], found: Sequence[Steps], load: Floats, room: Floats) -> tuple[Floats, Floats]:
    """Load and room when the strands of ``tables`` stay as found."""
    return load + _sum(tables, found, "seconds"), room - _sum(tables, found, "memory")


def _worth(tables: Sequence[_Table], found: Sequence[Steps], load: Floats) -> tuple[float, float]:
    total = load + _sum(tables, found, "seconds")
    return round(float(total.max()), 12), float(np.square(total).sum()) * (1 - 1e-9)


def _sum(tables: Sequence[_Table], found: Sequence[Steps], what: str) -> Floats:
    total = np.zeros(len(found[0]) if found else 1)
    for table, steps in zip(tables, found, strict=True):
        column: Floats = getattr(table, what)
        total = total + np.array([column[slot, *step] for slot, step in enumerate(steps)])
    return total


def _cuts(strands: Sequence[Strand], tables: Sequence[_Table], found: Sequence[Steps], load: Floats) -> Cuts:
    pieces = tuple(_pieces(s, steps) for s, steps in zip(strands, found, strict=True))
    return Cuts(pieces, load + _sum(tables, found, "seconds"), np.zeros(len(load)) + _sum(tables, found, "memory"))


def _pieces(strand: Strand, steps: Steps) -> tuple[Piece, ...]:
    taken = [(slot, a, b) for slot, (a, b) in enumerate(steps) if a < b]
    if strand.up:
        return tuple(Piece(slot, strand.layers - b, strand.layers - a) for slot, a, b in reversed(taken))
    return tuple(Piece(slot, a, b) for slot, a, b in taken)

"""Cuts are as good as the best of all cuts, found by trying every one on small instances."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.plan import stages
from plait.plan.stages import Cuts, Floats, Piece, Strand, balance


def _strand(random: np.random.Generator, slots: int, layers: int, up: bool, messages: float = 1.0) -> Strand:
    speeds = random.uniform(0.3, 1.0, (slots, 1))
    return Strand(
        name="s",
        seconds=random.uniform(0.1, 1.0, (1, layers)) / speeds,
        memory=random.uniform(0.1, 1.0, (slots, layers)),
        entry_seconds=random.uniform(0.0, messages, (slots, slots, layers)),
        entry_memory=random.uniform(0.0, 0.3, (slots, layers)),
        up=up,
    )


def _spans(strand: Strand) -> Iterator[tuple[Piece, ...]]:
    """Every way to lay a strand over neighbouring slots."""
    slots = strand.seconds.shape[0]
    order = range(slots)[::-1] if strand.up else range(slots)
    for sizes in product(range(strand.layers + 1), repeat=slots):
        used = [i for i, n in enumerate(sizes) if n]
        if sum(sizes) != strand.layers or used != list(range(used[0], used[-1] + 1)):
            continue
        ends = np.cumsum(sizes)
        yield tuple(Piece(order[i], int(ends[i] - sizes[i]), int(ends[i])) for i in used)


def _load(strands: Sequence[Strand], pieces: Sequence[tuple[Piece, ...]]) -> tuple[Floats, Floats]:
    load, memory = np.zeros(strands[0].seconds.shape[0]), np.zeros(strands[0].seconds.shape[0])
    for strand, laid in zip(strands, pieces, strict=True):
        before = None
        for piece in laid:
            load[piece.slot] += strand.seconds[piece.slot, piece.first : piece.end].sum()
            memory[piece.slot] += strand.memory[piece.slot, piece.first : piece.end].sum()
            memory[piece.slot] += strand.entry_memory[piece.slot, piece.first]
            if before is not None:
                load[piece.slot] += strand.entry_seconds[before, piece.slot, piece.first]
            before = piece.slot
    return load, memory


def _best(strands: Sequence[Strand], room: Floats) -> float:
    found = np.inf
    for pieces in product(*(_spans(s) for s in strands)):
        load, memory = _load(strands, pieces)
        if (memory <= room).all():
            found = min(found, load.max())
    return float(found)


def _check(strands: Sequence[Strand], room: Floats, cuts: Cuts) -> None:
    load, memory = _load(strands, cuts.pieces)
    assert cuts.load == pytest.approx(load)
    assert cuts.memory == pytest.approx(memory)
    assert (memory <= room * (1 + 1e-9)).all()
    for strand, laid in zip(strands, cuts.pieces, strict=True):
        assert laid in set(_spans(strand))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 5), st.integers(0, 4), st.booleans(), st.booleans())
def test_two_strands_are_cut_as_well_as_possible_within_memory(
    seed: int, slots: int, first: int, second: int, up: bool, tight: bool
) -> None:
    random = np.random.default_rng(seed)
    strands = [_strand(random, slots, first, False)] + ([_strand(random, slots, second, up)] if second else [])
    room = random.uniform(0.5, 2.5, slots) if tight else np.full(slots, np.inf)
    cuts, best = balance(strands, room), _best(strands, room)
    if cuts is None:
        assert best == np.inf
    else:
        _check(strands, room, cuts)
        assert cuts.bottleneck == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.tuples(*[st.booleans()] * 3))
def test_three_strands_in_turns_come_near_the_best(seed: int, ups: tuple[bool, ...]) -> None:
    random = np.random.default_rng(seed)
    strands = [_strand(random, 3, n, up, 0.1) for n, up in zip((4, 3, 2), ups, strict=True)]
    room = np.full(3, np.inf)
    cuts = balance(strands, room)
    assert cuts is not None
    _check(strands, room, cuts)
    assert _best(strands, room) * (1 - 1e-9) <= cuts.bottleneck <= 1.25 * _best(strands, room)


def test_long_strands_are_cut_in_turns_almost_as_well_as_together(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    strands = [_strand(random, 4, 12, False, 0.1), _strand(random, 4, 9, True, 0.1)]
    room = np.full(4, np.inf)
    together = balance(strands, room)
    monkeypatch.setattr(stages, "EXACT_LIMIT", 0)
    apart = balance(strands, room)
    assert together is not None
    assert apart is not None
    assert together.bottleneck <= apart.bottleneck <= 1.15 * together.bottleneck


def test_a_light_strand_spans_fewer_slots_when_messages_are_dear() -> None:
    heavy = Strand("heavy", np.ones((4, 8)), np.ones((4, 8)), np.zeros((4, 4, 8)), np.zeros((4, 8)))
    light = Strand("light", np.full((4, 4), 0.05), np.ones((4, 4)), np.full((4, 4, 4), 5.0), np.zeros((4, 4)), up=True)
    cuts = balance([heavy, light], np.full(4, np.inf))
    assert cuts is not None
    assert len(cuts.pieces[1]) == 1
    assert [p.end - p.first for p in cuts.pieces[0]] == [2, 2, 2, 2]


def test_what_slots_do_besides_moves_the_cuts() -> None:
    strand = Strand("s", np.ones((2, 6)), np.zeros((2, 6)), np.zeros((2, 2, 6)), np.zeros((2, 6)))
    cuts = balance([strand], np.full(2, np.inf), np.array([4.0, 0.0]))
    assert cuts is not None
    assert [p.end - p.first for p in cuts.pieces[0]] == [1, 5]
    assert cuts.load.tolist() == [5.0, 5.0]

"""The simulator on random placements, schedules and prices, against what must hold and a naive reference."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from plait.errors import PlanError
from plait.schedule.action import ALL, BACKWARDS, FORWARDS, Action, Kind
from plait.schedule.lower import has_gradient, lower, trains
from plait.schedule.program import Op, Programs
from plait.schedule.verify import verify
from plait.simulate.core import run
from plait.simulate.flat import flatten
from plait.simulate.prices import Prices
from plait.simulate.simulate import simulate
from plait.simulate.timeline import Lane, Timeline
from schedule_strategies import Case, Maker, cases, makers, trainable

quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _programs(case: Case, make: Maker) -> Programs:
    placement, prices = case
    assume(trainable(placement))
    programs = lower(make(placement, prices), placement)
    verify(programs)
    return programs


@quick
@given(cases(), makers())
def test_every_schedule_is_verified_and_simulated_as_physics_allows(case: Case, make: Maker) -> None:
    placement, prices = case
    programs = _programs(case, make)
    timeline = simulate(programs, prices)
    _no_two_computes_at_once(timeline)
    _nothing_before_its_inputs(programs, timeline)
    _memory_returns(timeline, prices)
    assert timeline.step_time >= max(timeline.busy)
    work = sum(len(list(placement.work(r))) for r in range(placement.ranks))
    assert sum(e.lane is Lane.COMPUTE for e in timeline.events()) >= work
    assert Timeline.from_json(timeline.to_json()).to_json() == timeline.to_json()


def _no_two_computes_at_once(timeline: Timeline) -> None:
    for rank in range(len(timeline.ranks)):
        own = sorted((e.start, e.end) for e in timeline.events() if e.rank == rank and e.lane is Lane.COMPUTE)
        assert all(a[1] <= b[0] for a, b in pairwise(own))


def _nothing_before_its_inputs(programs: Programs, timeline: Timeline) -> None:
    placement = programs.placement
    times: dict[tuple[bool, int, int], tuple[float, float]] = {}
    for event in timeline.events():
        if event.lane is Lane.COMPUTE and event.stage >= 0:
            action = Action.parse(event.label)
            if action.kind in FORWARDS | BACKWARDS:
                times[action.kind in FORWARDS, event.stage, event.micro_batch] = event.start, event.end
    for edge in placement.edges:
        source, target = placement.stages[edge.source], placement.stages[edge.target]
        for m in range(len(placement.micro_batches)):
            here = edge.source, ALL if source.batch_scope else m
            there = edge.target, ALL if target.batch_scope else m
            assert times[True, *here][1] <= times[True, *there][0]
            if trains(programs.schedule) and has_gradient(edge, placement):
                assert times[False, *there][1] <= times[False, *here][0]


def _memory_returns(timeline: Timeline, prices: Prices) -> None:
    last: dict[int, float] = {}
    for rank, nbytes in zip(timeline.memory_rank, timeline.memory_bytes, strict=True):
        assert nbytes >= prices.fixed_bytes[rank]
        last[int(rank)] = float(nbytes)
    assert last == dict(enumerate(prices.fixed_bytes))


@quick
@given(cases(), makers(), st.data())
def test_a_faster_stage_or_link_never_makes_a_step_longer(case: Case, make: Maker, data: st.DataObject) -> None:
    _, prices = case
    programs = _programs(case, make)
    stages, links = dict(prices.stages), dict(prices.links)
    stage = data.draw(st.sampled_from(sorted(stages)))
    stages[stage] = stages[stage].times(0.5)
    for pair, link in links.items():
        links[pair] = replace(link, latency=link.latency / 2, bandwidth=link.bandwidth * 2)
    faster = replace(prices, stages=stages, links=links)
    assert simulate(programs, faster).step_time <= simulate(programs, prices).step_time


@quick
@given(cases(), makers())
def test_it_equals_a_naive_simulator(case: Case, make: Maker) -> None:
    _, prices = case
    programs = _programs(case, make)
    timeline = simulate(programs, prices)
    computed, step_time = _naive(programs, prices)
    found = {(e.rank, e.label): (e.start, e.end) for e in timeline.events() if e.lane is Lane.COMPUTE}
    assert found == computed
    assert timeline.step_time == step_time


def _naive(programs: Programs, prices: Prices) -> tuple[dict[tuple[int, str], tuple[float, float]], float]:  # noqa: C901
    """Guess that all messages come at once, and run all ranks anew with the last guess until nothing changes."""
    arrival = [0.0] * len(programs.messages)
    while True:
        computed: dict[tuple[int, str], tuple[float, float]] = {}
        free: dict[tuple[int, int], float] = defaultdict(float)
        begun: dict[int, list[float]] = defaultdict(list)
        new, clocks = list(arrival), [0.0] * len(programs.ranks)
        for rank, program in enumerate(programs.ranks):
            for instruction in program:
                now = clocks[rank]
                if instruction.op is Op.COMPUTE and instruction.action:
                    action = instruction.action
                    samples = programs.placement.samples(action.micro_batch)
                    clocks[rank] += prices.stages[action.stage, rank, samples].seconds(action.kind)
                    computed[rank, str(action)] = now, clocks[rank]
                elif instruction.op is Op.SEND:
                    message = programs.messages[instruction.index]
                    pair = message.sender, message.receiver
                    free[pair] = max(free[pair], now) + message.nbytes / prices.links[pair].bandwidth
                    new[instruction.index] = free[pair] + prices.links[pair].latency
                elif instruction.op is Op.RECV:
                    clocks[rank] = max(now, arrival[instruction.index])
                elif instruction.op is Op.REDUCE:
                    begun[instruction.index].append(now)
        if new == arrival:
            break
        arrival = new
    barrier = max([*clocks, *(max(t) + prices.reductions[i] for i, t in begun.items())])
    if not trains(programs.schedule):
        return computed, max(clocks)
    for rank, seconds in enumerate(prices.step):
        computed[rank, "STEP"] = barrier, barrier + seconds
    return computed, barrier + max(prices.step)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(cases(), makers())
def test_the_compiled_core_gives_the_same(case: Case, make: Maker) -> None:
    flat = flatten(_programs(case, make), case[1])
    assert run(flat, compiled=True) == run(flat, compiled=False)


@quick
@given(cases(), makers(), st.data())
def test_the_verifier_accepts_exactly_the_rows_that_can_run(case: Case, make: Maker, data: st.DataObject) -> None:
    programs = _programs(case, make)
    rows = [list(row) for row in programs.schedule.rows]
    rank = data.draw(st.integers(0, len(rows) - 1))
    movable = len(rows[rank]) - trains(programs.schedule)
    assume(movable >= 2)
    a, b = data.draw(st.integers(0, movable - 1)), data.draw(st.integers(0, movable - 1))
    rows[rank].insert(b, rows[rank].pop(a))
    changed = lower(replace(programs.schedule, rows=tuple(map(tuple, rows))), programs.placement)
    if _can_run(changed):
        verify(changed)
        simulate(changed, case[1])
    else:
        with pytest.raises(PlanError):
            verify(changed)


def _can_run(programs: Programs) -> bool:
    """Whether the rows can be executed, each action after all that it needs, by trying again and again."""
    done: set[tuple[Kind, int, int]] = set()
    rows = [[a for a in row if a.kind is not Kind.STEP] for row in programs.schedule.rows]
    moved = True
    while moved:
        moved = False
        for row in rows:
            while row and _needs(programs, row[0]) <= done:
                action = row.pop(0)
                kind = {Kind.FORWARD_ONLY: Kind.FORWARD, Kind.INPUT_GRADIENT: Kind.BACKWARD}.get(
                    action.kind, action.kind
                )
                done.add((kind, action.stage, action.micro_batch))
                moved = True
    return not any(rows)


def _needs(programs: Programs, action: Action) -> set[tuple[Kind, int, int]]:
    placement, stage, m = programs.placement, action.stage, action.micro_batch
    if action.kind is Kind.RECOMPUTE:
        return {(Kind.FORWARD, stage, m)}
    if action.kind is Kind.WEIGHT_GRADIENT:
        return {(Kind.BACKWARD, stage, m)}
    goes_back = action.kind in BACKWARDS
    kind = Kind.BACKWARD if goes_back else Kind.FORWARD
    edges = [e for e in placement.edges if (e.source if goes_back else e.target) == stage]
    others = [e.target if goes_back else e.source for e in edges if not goes_back or has_gradient(e, placement)]
    needs = {(Kind.FORWARD, stage, m)} if goes_back else set()
    if goes_back and any(a.kind is Kind.RECOMPUTE and a.stage == stage for r in programs.schedule.rows for a in r):
        needs.add((Kind.RECOMPUTE, stage, m))
    every = range(len(placement.micro_batches))
    for other in others:
        if placement.stages[other].batch_scope:
            needs.add((kind, other, ALL))
        else:
            needs |= {(kind, other, n) for n in (every if m == ALL else (m,))}
    return needs

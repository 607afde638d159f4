"""The simulator: verified programs and prices in, the timeline that the paced runtime would have out.

A rank runs its instructions in order. A message holds its (sender, receiver) pair for bytes/bandwidth, first come
first served, and arrives a latency later. A reduction begins when all its ranks have begun it, off the compute path.
STEP waits for the rank's reductions, then for every rank. Overlapping pairs (``&``) run one after the other here.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from plait.errors import PlanError
from plait.schedule.lower import maker
from plait.schedule.program import Op, Programs
from plait.simulate.core import run
from plait.simulate.flat import Flat, flatten
from plait.simulate.memory import held_over_time
from plait.simulate.prices import Prices
from plait.simulate.timeline import Event, Lane, Timeline


def simulate(programs: Programs, prices: Prices, names: Sequence[str] = ()) -> Timeline:
    """The predicted timeline; ``names`` of the ranks are for people. Raises PlanError on a missing price or deadlock.

    ``programs`` must have passed ``verify``.
    """
    flat = flatten(programs, prices)
    begin, end, position = run(flat)
    _check_finished(programs, flat, position)
    events, step_time = _events(programs, prices, flat, begin, end)
    placement = programs.placement
    return Timeline.build(
        events,
        held_over_time(programs, prices, begin, end),
        ranks=tuple(names) or tuple(f"rank {r}" for r in range(placement.ranks)),
        stages=tuple(s.name for s in placement.stages),
        step_time=step_time,
        origin="predicted",
        meta={"schedule": programs.schedule.name, "micro_batches": list(placement.micro_batches)},
    )


def _check_finished(programs: Programs, flat: Flat, position: list[int]) -> None:
    for rank, at in enumerate(position):
        if at < flat.first[rank + 1]:
            instruction = programs.ranks[rank][at - flat.first[rank]]
            raise PlanError(
                f"the programs deadlock: rank {rank} waits forever for {programs.name(instruction.index)} "
                "(verify names all who wait)"
            )


def _events(
    programs: Programs, prices: Prices, flat: Flat, begin: list[float], end: list[float]
) -> tuple[list[Event], float]:
    """All events, and the step time."""
    events = [
        event
        for rank in range(len(programs.ranks))
        for event in _rank_events(programs, rank, flat.first[rank], begin, end)
    ]
    reductions = _reduction_events(programs, prices, flat, begin)
    steps, step_time = _step_events(programs, prices, flat, end, reductions)
    return events + reductions + steps, step_time


def _rank_events(programs: Programs, rank: int, offset: int, begin: list[float], end: list[float]) -> Iterator[Event]:
    """Compute, messages under way and waits for them."""
    for i, instruction in enumerate(programs.ranks[rank], offset):
        action = instruction.action
        if instruction.op is Op.COMPUTE and action is not None:
            yield Event(rank, Lane.COMPUTE, str(action), begin[i], end[i], action.stage, action.micro_batch)
        elif instruction.op is Op.SEND or (instruction.op is Op.RECV and end[i] > begin[i]):
            lane = Lane.SEND if instruction.op is Op.SEND else Lane.WAIT
            message = programs.messages[instruction.index]
            _, _, stage, _ = maker(programs.placement, message)
            label = programs.name(instruction.index)
            yield Event(rank, lane, label, begin[i], end[i], stage, message.micro_batch, message.nbytes)


def _reduction_events(programs: Programs, prices: Prices, flat: Flat, begin: list[float]) -> list[Event]:
    """Each reduction once on each of its ranks."""
    begun: dict[int, list[float]] = defaultdict(list)
    for rank, program in enumerate(programs.ranks):
        for i, instruction in enumerate(program, flat.first[rank]):
            if instruction.op is Op.REDUCE:
                begun[instruction.index].append(begin[i])
    return [
        Event(
            rank, Lane.REDUCE, f"reduce {index}", max(times), max(times) + prices.reductions[index],
            nbytes=programs.reductions[index].nbytes,
        )
        for index, times in begun.items()
        for rank in programs.reductions[index].ranks
    ]  # fmt: skip


def _step_events(
    programs: Programs, prices: Prices, flat: Flat, end: list[float], reductions: list[Event]
) -> tuple[list[Event], float]:
    """The barrier and the optimizer's steps, and when the last rank ends."""
    done = [end[flat.first[r + 1] - 1] if program else 0.0 for r, program in enumerate(programs.ranks)]
    stepping = [r for r, program in enumerate(programs.ranks) if program and program[-1].op is Op.STEP]
    if not stepping:
        return [], max(done, default=0.0)
    barrier = max([done[r] for r in stepping] + [e.end for e in reductions])
    events = []
    for rank in stepping:
        if barrier > done[rank]:
            events.append(Event(rank, Lane.WAIT, "STEP", done[rank], barrier))
        events.append(Event(rank, Lane.COMPUTE, "STEP", barrier, barrier + prices.step[rank]))
    return events, max([*done, *(e.end for e in events)])

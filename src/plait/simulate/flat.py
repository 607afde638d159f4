"""Programs and prices as flat columns: what the event core reads. An entry per instruction, rank after rank."""

from dataclasses import dataclass

from plait.errors import PlanError
from plait.schedule.action import Action
from plait.schedule.placement import Placement
from plait.schedule.program import Op, Programs
from plait.simulate.prices import LinkPrice, Prices, StagePrice

COMPUTE, SEND, RECV, OTHER = range(4)
"""Codes of ``op``; REDUCE and STEP are OTHER: they take no time on the compute path before the barrier."""

_CODES = {Op.COMPUTE: COMPUTE, Op.SEND: SEND, Op.RECV: RECV, Op.REDUCE: OTHER, Op.STEP: OTHER}


@dataclass(frozen=True, slots=True)
class Flat:
    """Columns. Instructions of rank r are ``first[r]`` up to ``first[r + 1]``; messages and pairs are numbered."""

    first: list[int]
    op: list[int]
    seconds: list[float]
    """Of a COMPUTE; 0 else."""
    message: list[int]
    """Of a SEND or RECV; -1 else."""
    receiver: list[int]
    """Per message, the rank that waits for it."""
    pair: list[int]
    """Per message, the number of its (sender, receiver)."""
    occupies: list[float]
    """Per message, the seconds for which it holds its pair."""
    latency: list[float]
    """Per message."""
    pairs: int


def flatten(programs: Programs, prices: Prices) -> Flat:
    """The columns; raises PlanError where a price is missing."""
    first, op, seconds, message = [0], [], [], []
    for rank, program in enumerate(programs.ranks):
        for instruction in program:
            code = _CODES[instruction.op]
            op.append(code)
            message.append(instruction.index if code in (SEND, RECV) else -1)
            action = instruction.action
            if code == COMPUTE and action is not None:
                seconds.append(_seconds(programs.placement, prices, rank, action))
            else:
                seconds.append(0.0)
        first.append(len(op))
    pairs: dict[tuple[int, int], int] = {}
    pair = [pairs.setdefault((m.sender, m.receiver), len(pairs)) for m in programs.messages]
    occupies, latency = _links(programs, prices)
    receiver = [m.receiver for m in programs.messages]
    return Flat(first, op, seconds, message, receiver, pair, occupies, latency, len(pairs))


def _links(programs: Programs, prices: Prices) -> tuple[list[float], list[float]]:
    occupies, latency = [], []
    for message in programs.messages:
        link = link_of(prices, message.sender, message.receiver)
        occupies.append(message.nbytes / link.bandwidth)
        latency.append(link.latency)
    return occupies, latency


def link_of(prices: Prices, sender: int, receiver: int) -> LinkPrice:
    """The price of the way between two ranks; raises PlanError where there is none."""
    link = prices.links.get((sender, receiver))
    if link is None:
        raise PlanError(f"no price of the link from rank {sender} to rank {receiver}")
    return link


def price_of(placement: Placement, prices: Prices, rank: int, stage: int, micro_batch: int) -> StagePrice:
    """The price of a stage there and of that size; raises PlanError where there is none."""
    samples = placement.samples(micro_batch)
    price = prices.stages.get((stage, rank, samples))
    if price is None:
        name = placement.stages[stage].name
        raise PlanError(f"no price of stage {name} on rank {rank} for {samples} samples")
    return price


def _seconds(placement: Placement, prices: Prices, rank: int, action: Action) -> float:
    return price_of(placement, prices, rank, action.stage, action.micro_batch).seconds(action.kind)

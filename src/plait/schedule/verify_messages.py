"""Verification of messages and reductions: all there, paired, after what makes them, in one order at both ends."""

from collections import Counter, defaultdict

from plait.errors import PlanError
from plait.schedule.action import BACKWARDS, FORWARDS, Kind
from plait.schedule.lower import Event, maker, messages_of, user
from plait.schedule.program import Direction, Message, Op, Programs

Table = dict[tuple[int, int], dict[Kind, int]]
Spots = dict[int, int]
"""Message → its position in a rank's program."""


def check_messages(programs: Programs, tables: list[Table], training: bool) -> None:
    """Raise PlanError unless every message the placement needs is sent and received once, in time and in order."""
    _check_wanted(programs, training)
    sent = _spots(programs, Op.SEND)
    received = _spots(programs, Op.RECV)
    for index, message in enumerate(programs.messages):
        _check_ends(programs, index, message, sent, received)
        _check_times(programs, index, sent[index], received[index], tables)
    _check_pairs(programs, sent, received)


def _check_wanted(programs: Programs, training: bool) -> None:
    wanted = {_key(m) for m in messages_of(programs.placement, training)}
    given = Counter(_key(m) for m in programs.messages)
    stages = programs.placement.stages
    for key in wanted ^ given.keys() | {k for k, count in given.items() if count > 1}:
        edge, micro_batch, direction, sender, receiver = key
        ends = programs.placement.edges[edge]
        raise PlanError(
            f"the {direction} message of micro-batch {micro_batch} between {stages[ends.source].name} and "
            f"{stages[ends.target].name}, rank {sender} to rank {receiver}, is there {given[key]} times, "
            f"expected {int(key in wanted)}"
        )


def _key(message: Message) -> tuple[int, int, Direction, int, int]:
    return message.edge, message.micro_batch, message.direction, message.sender, message.receiver


def _spots(programs: Programs, op: Op) -> Spots:
    """Where each message is sent or received; raises PlanError if twice or by the wrong rank."""
    spots: Spots = {}
    done = "sends" if op is Op.SEND else "receives"
    for rank, program in enumerate(programs.ranks):
        for position, instruction in enumerate(program):
            if instruction.op is not op:
                continue
            message = programs.messages[instruction.index]
            if rank != (message.sender if op is Op.SEND else message.receiver):
                raise PlanError(
                    f"rank {rank} {done} {programs.name(instruction.index)}, which goes from rank {message.sender} "
                    f"to rank {message.receiver}"
                )
            if instruction.index in spots:
                raise PlanError(f"rank {rank} {done} {programs.name(instruction.index)} twice")
            spots[instruction.index] = position
    return spots


def _check_ends(programs: Programs, index: int, message: Message, sent: Spots, received: Spots) -> None:
    for spots, rank, done in ((sent, message.sender, "sends"), (received, message.receiver, "receives")):
        if index not in spots:
            raise PlanError(
                f"rank {rank} never {done} {programs.name(index)} (rank {message.sender} to rank {message.receiver})"
            )


def _check_times(programs: Programs, index: int, sent: int, received: int, tables: list[Table]) -> None:
    """Sent after it is made, received before it is used."""
    message = programs.messages[index]
    made, used = maker(programs.placement, message), user(programs.placement, message)
    if sent < _position(tables, made):
        raise PlanError(f"rank {message.sender} sends {programs.name(index)} before the action that makes it")
    if received > _position(tables, used):
        raise PlanError(f"rank {message.receiver} receives {programs.name(index)} after the action that needs it")


def _position(tables: list[Table], event: Event) -> int:
    rank, direction, stage, micro_batch = event
    kinds = FORWARDS if direction is Direction.FORWARD else BACKWARDS
    return next(p for kind, p in tables[rank][stage, micro_batch].items() if kind in kinds)


def _check_pairs(programs: Programs, sent: Spots, received: Spots) -> None:
    """Transports deliver in the sender's order, so each pair's receives must stand in it too."""
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, message in enumerate(programs.messages):
        pairs[message.sender, message.receiver].append(index)
    for (sender, receiver), indexes in pairs.items():
        sends = sorted(indexes, key=sent.__getitem__)
        receives = sorted(indexes, key=received.__getitem__)
        for first, early in zip(sends, receives, strict=True):
            if first != early:
                raise PlanError(
                    f"rank {receiver} receives {programs.name(early)} out of order: rank {sender} sends "
                    f"{programs.name(first)} before it"
                )


def check_reductions(programs: Programs, tables: list[Table], training: bool) -> None:
    """Raise PlanError unless each of a reduction's ranks begins it once, after the last gradient it sums."""
    begun = {
        (instruction.index, rank): position
        for rank, program in enumerate(programs.ranks)
        for position, instruction in enumerate(program)
        if instruction.op is Op.REDUCE
    }
    count = sum(i.op is Op.REDUCE for program in programs.ranks for i in program)
    wanted = {(i, rank) for i, r in enumerate(programs.reductions) for rank in r.ranks} if training else set()
    for index, rank in wanted ^ begun.keys():
        said = "never begins" if (index, rank) in wanted else "begins, but is no part of,"
        raise PlanError(f"rank {rank} {said} reduction {index} ({_of(programs, index)})")
    if count > len(begun):
        raise PlanError("a rank begins a reduction twice")
    for (index, rank), position in begun.items():
        reduction = programs.reductions[index]
        stages = set(reduction.stages[reduction.ranks.index(rank)])
        last = _last_gradient(tables[rank], stages)
        if position < last:
            raise PlanError(
                f"rank {rank} begins reduction {index} ({_of(programs, index)}) before "
                f"{programs.ranks[rank][last].action}, which adds to it"
            )


def _of(programs: Programs, index: int) -> str:
    if not 0 <= index < len(programs.reductions):
        return "unknown"
    parameters = programs.reductions[index].parameters
    return parameters[0] if len(parameters) == 1 else f"{parameters[0]} and {len(parameters) - 1} more"


def _last_gradient(table: Table, stages: set[int]) -> int:
    ends = (Kind.BACKWARD, Kind.WEIGHT_GRADIENT)
    return max((kinds[k] for (s, _), kinds in table.items() if s in stages for k in ends if k in kinds), default=-1)

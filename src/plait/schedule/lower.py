"""Lowering: communication is put into a schedule. The only place that decides it.

Sends follow the action that makes a message, receives precede the action that first needs it. Transports deliver
in the sender's order, so a message that was sent earlier on the same pair is received first even if it is needed
later; that costs nothing, for it has arrived earlier.
"""

from collections import defaultdict
from collections.abc import Iterable

from plait.schedule.action import ALL, BACKWARDS, FORWARDS, Action, Kind, Schedule
from plait.schedule.placement import Edge, PlacedStage, Placement
from plait.schedule.program import Direction, Instruction, Message, Op, Programs

Event = tuple[int, Direction, int, int]
"""(rank, direction, stage, micro-batch): a forward or a backward as the maker or user of messages."""

_ENDS_GRADIENT = frozenset({Kind.BACKWARD, Kind.WEIGHT_GRADIENT})


def lower(schedule: Schedule, placement: Placement) -> Programs:
    """The programs of a schedule. What is missing or misplaced in it stays so: ``verify`` names it."""
    training = trains(schedule)
    messages = messages_of(placement, training)
    sends = _sends(schedule, placement, messages)
    receives = _receives(schedule, placement, messages, sends)
    ranks = tuple(
        tuple(_program(rank, row, sends, receives, _reductions(rank, row, placement) if training else {}))
        for rank, row in enumerate(schedule.rows)
    )
    return Programs(placement, schedule, ranks, messages, placement.reductions)


def trains(schedule: Schedule) -> bool:
    """Whether the schedule has backwards at all; an evaluation has none."""
    return any(a.kind in BACKWARDS for row in schedule.rows for a in row)


def has_gradient(edge: Edge, placement: Placement) -> bool:
    """Whether a gradient flows back along the edge when training."""
    return edge.gradient and placement.stages[edge.target].backward and placement.stages[edge.source].backward


def messages_of(placement: Placement, training: bool) -> tuple[Message, ...]:
    """Every message that the placement needs: forward ones, then, when training, backward ones."""
    forward = [m for index in range(len(placement.edges)) for m in _edge_messages(placement, index, Direction.FORWARD)]
    if not training:
        return tuple(forward)
    back = [
        m
        for index, edge in enumerate(placement.edges)
        if has_gradient(edge, placement)
        for m in _edge_messages(placement, index, Direction.BACKWARD)
    ]
    return tuple(forward + back)


def _edge_messages(placement: Placement, index: int, direction: Direction) -> Iterable[Message]:
    """One message per micro-batch whose two ends are on different ranks."""
    edge = placement.edges[index]
    source, target = placement.stages[edge.source], placement.stages[edge.target]
    both = source.batch_scope and target.batch_scope
    forward = direction is Direction.FORWARD
    per_sample = edge.bytes_per_sample if forward else edge.gradient_bytes_per_sample
    fixed = edge.bytes_fixed if forward else edge.gradient_bytes_fixed
    for m in (ALL,) if both else range(len(placement.micro_batches)):
        here, there = source.rank_of[_batch(source, m)], target.rank_of[_batch(target, m)]
        if here != there:
            sender, receiver = (here, there) if forward else (there, here)
            yield Message(index, m, direction, sender, receiver, per_sample * placement.samples(m) + fixed)


def _batch(stage: PlacedStage, micro_batch: int) -> int:
    """The micro-batch of the action in which the stage handles ``micro_batch``."""
    return ALL if stage.batch_scope else micro_batch


def maker(placement: Placement, message: Message) -> Event:
    """The forward or backward that makes the message."""
    edge = placement.edges[message.edge]
    stage = edge.source if message.direction is Direction.FORWARD else edge.target
    return message.sender, message.direction, stage, _batch(placement.stages[stage], message.micro_batch)


def user(placement: Placement, message: Message) -> Event:
    """The forward or backward that needs the message."""
    edge = placement.edges[message.edge]
    stage = edge.target if message.direction is Direction.FORWARD else edge.source
    return message.receiver, message.direction, stage, _batch(placement.stages[stage], message.micro_batch)


def event_of(rank: int, action: Action) -> Event | None:
    """The action as a maker and user of messages; R and W are neither (inputs were kept, gradients are sent by I)."""
    if action.kind in FORWARDS:
        return rank, Direction.FORWARD, action.stage, action.micro_batch
    if action.kind in BACKWARDS:
        return rank, Direction.BACKWARD, action.stage, action.micro_batch
    return None


def _positions(schedule: Schedule) -> dict[Event, int]:
    """Event → its (first) position in its rank's row."""
    positions: dict[Event, int] = {}
    for rank, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            event = event_of(rank, action)
            if event:
                positions.setdefault(event, position)
    return positions


Slots = dict[tuple[int, int], list[int]]
"""(rank, position in its row) → messages, in order."""


def _sends(schedule: Schedule, placement: Placement, messages: tuple[Message, ...]) -> Slots:
    """What each action sends; what its receiver needs first goes first."""
    positions = _positions(schedule)
    needed = [positions.get(user(placement, message), -1) for message in messages]
    slots: Slots = defaultdict(list)
    for index, message in enumerate(messages):
        position = positions.get(maker(placement, message))
        if position is not None:
            slots[message.sender, position].append(index)
    for sent in slots.values():
        sent.sort(key=lambda i: (needed[i], i))
    return slots


def _receives(schedule: Schedule, placement: Placement, messages: tuple[Message, ...], sends: Slots) -> Slots:
    """What each action waits for: what it needs, and what the same senders had sent before that."""
    queues: dict[tuple[int, int], list[int]] = defaultdict(list)
    for sent in (sends[key] for key in sorted(sends)):
        for index in sent:
            queues[messages[index].sender, messages[index].receiver].append(index)
    place = {index: place for queue in queues.values() for place, index in enumerate(queue)}
    needs: dict[Event, list[int]] = defaultdict(list)
    for index in place:
        needs[user(placement, messages[index])].append(index)
    done: dict[tuple[int, int], int] = defaultdict(int)
    slots: Slots = {}
    for rank, row in enumerate(schedule.rows):
        for position, action in enumerate(row):
            event = event_of(rank, action)
            wanted = needs.get(event, []) if event else []
            slots[rank, position] = _in_order(wanted, rank, messages, queues, place, done)
    return slots


def _in_order(
    wanted: list[int],
    rank: int,
    messages: tuple[Message, ...],
    queues: dict[tuple[int, int], list[int]],
    place: dict[int, int],
    done: dict[tuple[int, int], int],
) -> list[int]:
    """The wanted messages with what precedes them on their pairs; ``done`` counts what each pair has received."""
    received: list[int] = []
    for index in wanted:
        pair = messages[index].sender, rank
        if place[index] >= done[pair]:
            received += queues[pair][done[pair] : place[index] + 1]
            done[pair] = place[index] + 1
    return received


def _reductions(rank: int, row: tuple[Action, ...], placement: Placement) -> dict[int, list[int]]:
    """Position in the row → reductions that begin just before it, in index order on every rank."""
    last = {a.stage: position for position, a in enumerate(row) if a.kind in _ENDS_GRADIENT}
    begins: dict[int, list[int]] = defaultdict(list)
    ready = -1
    for index, reduction in enumerate(placement.reductions):
        if rank in reduction.ranks:
            stages = reduction.stages[reduction.ranks.index(rank)]
            ready = max([ready, *(last[s] for s in stages if s in last)])
            begins[ready + 1].append(index)
    return begins


def _program(
    rank: int, row: tuple[Action, ...], sends: Slots, receives: Slots, reductions: dict[int, list[int]]
) -> Iterable[Instruction]:
    for position, action in enumerate(row):
        for index in reductions.get(position, ()):
            yield Instruction(Op.REDUCE, index=index)
        for index in receives[rank, position]:
            yield Instruction(Op.RECV, index=index)
        yield Instruction(Op.STEP if action.kind is Kind.STEP else Op.COMPUTE, action)
        for index in sends.get((rank, position), ()):
            yield Instruction(Op.SEND, index=index)

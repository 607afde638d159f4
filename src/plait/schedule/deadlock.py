"""Deadlocks: the programs are executed without time, and if they get stuck, the circle of waits is named.

Sends never wait. A receive waits for its send. A rank begins its reductions without waiting, but one at a time: a
reduction runs when it is next on all its ranks (collectives on one communicator must meet in the same order). STEP
waits for the rank's reductions, then for every rank.
"""

from collections import deque

from plait.errors import PlanError
from plait.schedule.lower import event_of, user
from plait.schedule.program import Op, Programs


def check_progress(programs: Programs) -> None:
    """Raise PlanError that names who waits for whom, if the programs cannot all end."""
    execution = _Execution(programs)
    execution.run()
    stuck = execution.stuck()
    if stuck:
        raise PlanError("the programs deadlock: " + "; ".join(execution.circle(stuck)))


class _Execution:
    """How far each rank has come."""

    def __init__(self, programs: Programs) -> None:
        count = len(programs.ranks)
        self._programs = programs
        self._position = [0] * count
        self._sent = [False] * len(programs.messages)
        self._receiver_waits = [-1] * count
        self._reductions: list[deque[int]] = [deque() for _ in range(count)]
        """Per rank, those begun and not done, in order."""
        self._ready = list(range(count))

    def run(self) -> None:
        """Go on until nobody can."""
        while self._ready:
            self._advance(self._ready.pop())

    def stuck(self) -> list[int]:
        """The ranks that have not ended; reaching STEP is the end if all reach it."""
        open_ranks = [r for r, program in enumerate(self._programs.ranks) if self._position[r] < len(program)]
        if all(self._at_step(r) and not self._reductions[r] for r in open_ranks):
            return []
        return open_ranks

    def circle(self, stuck: list[int]) -> list[str]:
        """The waits that close a circle, one sentence each."""
        seen: dict[int, str] = {}
        rank = stuck[0]
        while rank not in seen:
            other, text = self._wait(rank)
            seen[rank] = text
            rank = other
        ranks = list(seen)
        return [seen[r] for r in ranks[ranks.index(rank) :]]

    def _advance(self, rank: int) -> None:
        program = self._programs.ranks[rank]
        while self._position[rank] < len(program):
            instruction = program[self._position[rank]]
            if instruction.op is Op.STEP:
                return
            if instruction.op is Op.RECV and not self._sent[instruction.index]:
                self._receiver_waits[rank] = instruction.index
                return
            if instruction.op is Op.SEND:
                self._send(instruction.index)
            elif instruction.op is Op.REDUCE:
                self._begin(rank, instruction.index)
            self._position[rank] += 1

    def _send(self, index: int) -> None:
        self._sent[index] = True
        receiver = self._programs.messages[index].receiver
        if self._receiver_waits[receiver] == index:
            self._receiver_waits[receiver] = -1
            self._ready.append(receiver)

    def _begin(self, rank: int, index: int) -> None:
        """Add a reduction to the rank's, and end all those that are next everywhere."""
        self._reductions[rank].append(index)
        following = [index]
        while following:
            index = following.pop()
            ranks = self._programs.reductions[index].ranks
            if all(self._next_is(r, index) for r in ranks):
                for r in ranks:
                    self._reductions[r].popleft()
                following += [self._reductions[r][0] for r in ranks if self._reductions[r]]

    def _next_is(self, rank: int, reduction: int) -> bool:
        return bool(self._reductions[rank]) and self._reductions[rank][0] == reduction

    def _at_step(self, rank: int) -> bool:
        return self._programs.ranks[rank][self._position[rank]].op is Op.STEP

    def _wait(self, rank: int) -> tuple[int, str]:
        """Whom a stuck rank waits for, and the sentence that says so."""
        instruction = self._programs.ranks[rank][self._position[rank]]
        if instruction.op is Op.RECV:
            sender = self._programs.messages[instruction.index].sender
            action, needed = self._next_action(rank)
            name = self._programs.name(instruction.index if needed is None else needed)
            return sender, f"rank {rank} waits at {action} for rank {sender}'s message {name}"
        if self._reductions[rank]:
            index = self._reductions[rank][0]
            other = next(r for r in self._programs.reductions[index].ranks if not self._next_is(r, index))
            return other, f"rank {rank} waits at STEP for rank {other} in reduction {index}"
        other = next(r for r in self.stuck() if not self._at_step(r) or self._reductions[r])
        return other, f"rank {rank} waits at STEP for rank {other}"

    def _next_action(self, rank: int) -> tuple[str, int | None]:
        """The action that a receiving rank comes to next, and what it needs from the sender that it waits for.

        The message awaited may be one that only precedes the needed one on its pair.
        """
        at = self._position[rank]
        program, messages = self._programs.ranks[rank], self._programs.messages
        end = next(i for i in range(at, len(program)) if program[i].action)
        action = program[end].action
        sender = messages[program[at].index].sender
        event = event_of(rank, action) if action else None
        for i in range(at, end):
            if program[i].op is Op.RECV:
                message = messages[program[i].index]
                if message.sender == sender and user(self._programs.placement, message) == event:
                    return str(action), program[i].index
        return str(action), None

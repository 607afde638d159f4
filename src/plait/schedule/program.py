"""Programs: a schedule lowered to what each rank does, communication included.

The simulator and the engine both run Programs; lowering is the only place that decides communication.
"""

from dataclasses import dataclass
from enum import StrEnum

from plait.schedule.action import ALL, Action, Schedule
from plait.schedule.placement import Placement, Reduction


class Op(StrEnum):
    """What an instruction does."""

    COMPUTE = "COMPUTE"
    SEND = "SEND"
    """Hand the message to the transport; never waits."""
    RECV = "RECV"
    """Wait for the message; the transport has posted the receive before, in the sender's order."""
    REDUCE = "REDUCE"
    """Start summing gradients over the reduction's ranks; ``STEP`` waits for it."""
    STEP = "STEP"


class Direction(StrEnum):
    """Which way a message goes along its edge."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Message:
    """One edge's tensors for one micro-batch, from rank to rank. ``edge`` indexes ``Placement.edges``."""

    edge: int
    micro_batch: int
    direction: Direction
    sender: int
    receiver: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class Instruction:
    """One step of a rank. ``index`` is a message's (SEND, RECV) or a reduction's (REDUCE)."""

    op: Op
    action: Action | None = None
    index: int = -1


@dataclass(frozen=True)
class Programs:
    """All ranks' programs, with the messages and reductions that they name."""

    placement: Placement
    schedule: Schedule
    ranks: tuple[tuple[Instruction, ...], ...]
    messages: tuple[Message, ...]
    reductions: tuple[Reduction, ...]

    def name(self, index: int) -> str:
        """A message in text, by stages: ``0>2:F3`` forward, ``2>0:B3`` backward, ``*`` for every micro-batch."""
        message = self.messages[index]
        edge = self.placement.edges[message.edge]
        batch = "*" if message.micro_batch == ALL else message.micro_batch
        if message.direction is Direction.FORWARD:
            return f"{edge.source}>{edge.target}:F{batch}"
        return f"{edge.target}>{edge.source}:B{batch}"

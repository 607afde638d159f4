"""Actions and schedules: the one language of generators, verifier, simulator, engine and pictures.

A schedule says, per rank, in which order work is done. It contains no communication.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from plait.errors import ScheduleError

ALL = -1
"""The micro-batch of an action that covers every micro-batch at once (``*`` in text)."""


class Kind(StrEnum):
    """What an action does. ``I`` and ``W`` are the halves of ``B``, as in zero-bubble pipelines."""

    FORWARD = "F"
    FORWARD_ONLY = "N"
    """Forward that keeps nothing for the backward."""
    RECOMPUTE = "R"
    """Forward again, from the stage's kept inputs, for the backward."""
    BACKWARD = "B"
    INPUT_GRADIENT = "I"
    WEIGHT_GRADIENT = "W"
    STEP = "STEP"
    """The optimizer's step; one barrier (global norm, non-finite flag) precedes it."""


FORWARDS = frozenset({Kind.FORWARD, Kind.FORWARD_ONLY})
BACKWARDS = frozenset({Kind.BACKWARD, Kind.INPUT_GRADIENT})
"""Kinds that send gradients on."""

_ACTION = re.compile(r"(\d+)([FNRBIW])(\d+|\*)(&?)")


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work of one stage on one micro-batch; text form ``2F0``, ``4B*``, ``STEP``.

    ``overlaps`` marks a pair that may run at the same time: this action and the next (``2F0&``).
    """

    kind: Kind
    stage: int = -1
    micro_batch: int = ALL
    overlaps: bool = False

    def __str__(self) -> str:
        if self.kind is Kind.STEP:
            return "STEP"
        batch = "*" if self.micro_batch == ALL else str(self.micro_batch)
        return f"{self.stage}{self.kind}{batch}{'&' if self.overlaps else ''}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action written as ``text``; raises ScheduleError."""
        if text == "STEP":
            return cls(Kind.STEP)
        match = _ACTION.fullmatch(text)
        if not match:
            raise ScheduleError(f"{text!r} is not an action; write stage, kind (FNRBIW) and micro-batch: 2F0, 4B*")
        stage, kind, batch, overlaps = match.groups()
        return cls(Kind(kind), int(stage), ALL if batch == "*" else int(batch), bool(overlaps))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Per rank, the order of its actions. ``rows[rank]`` belongs to global rank ``rank``."""

    name: str
    rows: tuple[tuple[Action, ...], ...]
    options: dict[str, Any] = field(default_factory=dict)

    def to_text(self) -> list[str]:
        """One line per rank: ``0F0 0F1 0B0 0B1 STEP``."""
        return [" ".join(map(str, row)) for row in self.rows]

    @classmethod
    def from_text(cls, name: str, lines: list[str], options: dict[str, Any] | None = None) -> "Schedule":
        """The schedule that ``to_text`` wrote; raises ScheduleError."""
        rows = tuple(tuple(Action.parse(word) for word in line.split()) for line in lines)
        return cls(name, rows, options or {})

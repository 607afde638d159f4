"""Timeline: who did what from when to when, and how much memory was held.

The simulator and the running engine both make it, so prediction against reality is one subtraction.
"""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.errors import FileError
from plait.files import read_text, write_text

FORMAT = "plait-timeline/1"


class Lane(StrEnum):
    """Where on a rank an event happens. Compute events of one rank never overlap."""

    COMPUTE = "compute"
    SEND = "send"
    """A message under way, drawn at its sender, from hand-over to delivery."""
    WAIT = "wait"
    """Compute stands still until a message or a barrier comes."""
    REDUCE = "reduce"


LANES = tuple(Lane)


@dataclass(frozen=True, slots=True)
class Event:
    """One event: seconds from the step's start; ``label`` is the action (``2F0``) or what is sent (``0>2:F3``)."""

    rank: int
    lane: Lane
    label: str
    start: float
    end: float
    stage: int = -1
    micro_batch: int = -1
    nbytes: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """Columns of events, sorted by start, and of memory held per rank (bytes after each change)."""

    ranks: tuple[str, ...]
    """A name per rank, for people: its device."""
    stages: tuple[str, ...]
    """A name per stage."""
    rank: NDArray[np.int32]
    lane: NDArray[np.int8]
    label: tuple[str, ...]
    start: NDArray[np.float64]
    end: NDArray[np.float64]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    nbytes: NDArray[np.float64]
    memory_rank: NDArray[np.int32]
    memory_time: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    step_time: float
    """Seconds from the step's start to the last rank's end."""
    origin: str
    """``predicted`` or ``measured``."""
    meta: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        events: Iterable[Event],
        memory: Iterable[tuple[int, float, float]],
        *,
        ranks: tuple[str, ...],
        stages: tuple[str, ...],
        step_time: float,
        origin: str,
        meta: dict[str, Any] | None = None,
    ) -> "Timeline":
        """The timeline of events and of (rank, time, bytes) memory samples, in any order."""
        rows = sorted(events, key=lambda e: (e.start, e.rank, e.end, e.label))
        held = sorted(memory, key=lambda m: m[1])
        return cls(
            ranks=ranks,
            stages=stages,
            rank=np.array([e.rank for e in rows], np.int32),
            lane=np.array([LANES.index(e.lane) for e in rows], np.int8),
            label=tuple(e.label for e in rows),
            start=np.array([e.start for e in rows], np.float64),
            end=np.array([e.end for e in rows], np.float64),
            stage=np.array([e.stage for e in rows], np.int32),
            micro_batch=np.array([e.micro_batch for e in rows], np.int32),
            nbytes=np.array([e.nbytes for e in rows], np.float64),
            memory_rank=np.array([m[0] for m in held], np.int32),
            memory_time=np.array([m[1] for m in held], np.float64),
            memory_bytes=np.array([m[2] for m in held], np.float64),
            step_time=step_time,
            origin=origin,
            meta=meta or {},
        )

    def __len__(self) -> int:
        return len(self.label)

    def events(self) -> Iterator[Event]:
        """The events as rows."""
        for i in range(len(self)):
            yield Event(
                int(self.rank[i]), LANES[self.lane[i]], self.label[i], float(self.start[i]), float(self.end[i]),
                int(self.stage[i]), int(self.micro_batch[i]), float(self.nbytes[i]),
            )  # fmt: skip

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """Seconds of compute per rank."""
        compute = self.lane == LANES.index(Lane.COMPUTE)
        spent = (self.end - self.start)[compute]
        total = np.zeros(len(self.ranks))
        np.add.at(total, self.rank[compute], spent)
        return total

    @property
    def bubble_ratio(self) -> float:
        """Idle share of all ranks' time inside the step."""
        if not self.step_time:
            return 0.0
        return float(1.0 - self.busy.sum() / (len(self.ranks) * self.step_time))

    @cached_property
    def peak_bytes(self) -> NDArray[np.float64]:
        """Most bytes held per rank."""
        peaks = np.zeros(len(self.ranks))
        np.maximum.at(peaks, self.memory_rank, self.memory_bytes)
        return peaks

    def to_json(self) -> str:
        """JSON text that ``from_json`` reads back as an equal timeline."""
        columns = {name: getattr(self, name).tolist() for name in _ARRAYS}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return json.dumps({"format": FORMAT, **plain, **columns}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str = "text") -> "Timeline":
        """The timeline that ``to_json`` wrote; raises FileError."""
        try:
            data = json.loads(text)
            if data.get("format") != FORMAT:
                raise FileError(f"{where}: format: expected {FORMAT!r}, found {data.get('format')!r}")
            columns: dict[str, Any] = {name: np.array(data[name], kind) for name, kind in _ARRAYS.items()}
            plain: dict[str, Any] = {name: data[name] for name in _PLAIN}
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise FileError(f"{where}: not a timeline: {error}") from None
        for name in ("ranks", "stages", "label"):
            plain[name] = tuple(plain[name])
        return cls(**columns, **plain)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; raises FileError."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Timeline":
        """The timeline in a file; raises FileError."""
        return cls.from_json(read_text(path), str(path))


_ARRAYS: dict[str, Any] = {
    "rank": np.int32, "lane": np.int8, "start": np.float64, "end": np.float64, "stage": np.int32,
    "micro_batch": np.int32, "nbytes": np.float64,
    "memory_rank": np.int32, "memory_time": np.float64, "memory_bytes": np.float64,
}  # fmt: skip
_PLAIN = ("ranks", "stages", "label", "step_time", "origin", "meta")

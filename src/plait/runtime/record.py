"""What this rank did in a step: cheap enough to leave on."""

from dataclasses import dataclass, field

from plait.simulate.timeline import Event, Lane


@dataclass
class Record:
    """Events and memory samples of one rank in one step, on rank 0's clock (``offset`` is added to this rank's)."""

    rank: int
    offset: float = 0.0
    rows: list[tuple[Lane, str, float, float, int, int, float]] = field(default_factory=list)
    held: list[tuple[float, float]] = field(default_factory=list)
    work: float = 0.0
    """Seconds that compute took in fact, where it was held back to its priced duration."""
    start: float = 0.0
    end: float = 0.0
    before: float | None = None
    """When this rank ended the step before, if nothing else was done in between."""

    def add(
        self,
        lane: Lane,
        label: str,
        start: float,
        end: float,
        *,
        stage: int = -1,
        micro_batch: int = -1,
        nbytes: float = 0.0,
    ) -> None:
        """Note an event; times are this rank's own clock."""
        self.rows.append((lane, label, start, end, stage, micro_batch, nbytes))

    def hold(self, time: float, nbytes: float) -> None:
        """Note the bytes held from ``time`` on."""
        self.held.append((time, nbytes))

    def events(self, origin: float) -> list[Event]:
        """The events, in seconds since ``origin`` on rank 0's clock."""
        shift = self.offset - origin
        return [
            Event(self.rank, lane, label, start + shift, end + shift, stage, micro_batch, nbytes)
            for lane, label, start, end, stage, micro_batch, nbytes in self.rows
        ]

    def memory(self, origin: float) -> list[tuple[int, float, float]]:
        """(rank, seconds since ``origin``, bytes)."""
        return [(self.rank, time + self.offset - origin, nbytes) for time, nbytes in self.held]

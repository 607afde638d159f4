"""What to say when the others are stopped: torchrun ends every rank as soon as one fails."""

import os
import signal
import sys
from dataclasses import dataclass
from types import FrameType

from plait.runtime.transport import Transport


@dataclass
class Watch:
    """Knows what this rank waits for."""

    rank: int
    transport: Transport | None = None
    ends_step: bool = False
    """Whether it is at the barrier that ends a step."""

    def describe(self) -> str:
        """What this rank does at the moment, in a few words."""
        if self.transport is not None and self.transport.waiting:
            return f"rank {self.rank} was waiting {self.transport.waiting}"
        if self.ends_step:
            return f"rank {self.rank} was waiting for every rank to end its step"
        return f"rank {self.rank} was computing"

    def on_terminate(self) -> None:
        """From now on, say what this rank was waiting for when it is told to end, and end at once."""
        signal.signal(signal.SIGTERM, self._terminated)

    def _terminated(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        print(f"plait: {self.describe()} when it was told to end", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(128 + number)

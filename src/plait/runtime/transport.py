"""Messages between ranks: receives are posted early in the sender's order, sends never block compute.

Each directed pair is a queue. A waiting receive has a time-out, and its error names who waited for whom.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from plait.errors import RunError
from plait.runtime.clocks import now
from plait.runtime.layout import HEADER, Layout
from plait.runtime.pacing import Pace, sleep_until
from plait.runtime.reasons import reason_of
from plait.schedule.action import ALL
from plait.schedule.program import Direction, Op, Programs


@dataclass
class _Posted:
    message: int
    buffer: Tensor
    work: Any


@dataclass(frozen=True)
class Channel:
    """What the transport of one rank is made of. ``group(a, b)`` is the process group of the directed pair."""

    rank: int
    names: tuple[str, ...]
    device: torch.device
    timeout: float
    group: Callable[[int, int], dist.ProcessGroup | None]
    offset: float = 0.0
    """Seconds to add to this rank's clock to get the common one."""


class Transport:
    """The messages of one rank in one run of its program."""

    def __init__(
        self,
        channel: Channel,
        programs: Programs,
        layouts: Sequence[Layout | None],
        pace: Pace | None,
        prefetch: Sequence[int],
    ) -> None:
        self._channel = channel
        self._programs = programs
        self._layouts = layouts
        self._pace = pace
        self._window: dict[int, int] = {}
        """Per sender, how many receives are posted ahead: the most that one of its edges asks for."""
        self._coming: dict[int, deque[int]] = {}
        for instruction in programs.ranks[channel.rank]:
            if instruction.op is Op.RECV:
                message = programs.messages[instruction.index]
                self._coming.setdefault(message.sender, deque()).append(instruction.index)
                self._window[message.sender] = max(self._window.get(message.sender, 1), prefetch[message.edge])
        self._posted: dict[int, deque[_Posted]] = {sender: deque() for sender in self._coming}
        self._sending: deque[tuple[int, Tensor, Any]] = deque()
        self.waiting = ""
        """What this rank waits for at the moment, in words."""

    def begin(self) -> None:
        """Post the first receives."""
        for sender in self._coming:
            self._post(sender)

    def send(self, index: int, tensors: Mapping[str, Tensor]) -> float:
        """Hand a message over; gives the time of delivery on this rank's clock where that is known, else now."""
        message = self._programs.messages[index]
        buffer = self._layout(index).pack(tensors, self._channel.device)
        delivered = now()
        if self._pace is not None:
            delivered = self._pace.delivery(message.sender, message.receiver, message.nbytes, delivered)
            buffer[:HEADER].view(torch.float64)[0] = delivered + self._channel.offset
        group = self._channel.group(message.sender, message.receiver)
        try:
            work = dist.isend(buffer, message.receiver, group=group)
        except RuntimeError as error:
            raise RunError(self._failed("could not send to", message.receiver, index, error)) from None
        self._sending.append((index, buffer, work))
        self._reap()
        return delivered

    def receive(self, index: int) -> dict[str, Tensor]:
        """Wait for a message and take its tensors; raises RunError when its sender died or the time-out passed."""
        message = self._programs.messages[index]
        posted = self._posted[message.sender].popleft()
        if posted.message != index:
            raise RunError(
                f"rank {message.receiver} takes {self._programs.name(index)} before "
                f"{self._programs.name(posted.message)}, which was sent first (verify names such programs)"
            )
        self._post(message.sender)
        self._wait(posted.work, message.sender, index)
        if self._pace is not None:
            sleep_until(float(posted.buffer[:HEADER].view(torch.float64)[0]) - self._channel.offset)
        return self._layout(index).unpack(posted.buffer)

    def finish(self) -> None:
        """Wait until everything handed over has gone."""
        while self._sending:
            index, _, work = self._sending.popleft()
            message = self._programs.messages[index]
            self.waiting = f"for rank {message.receiver} to take {self._describe(index)}"
            try:
                work.wait(timedelta(seconds=self._channel.timeout))
            except RuntimeError as error:
                raise RunError(self._failed("could not send to", message.receiver, index, error)) from None
            self.waiting = ""

    def _layout(self, index: int) -> Layout:
        layout = self._layouts[index]
        if layout is None:
            raise RunError(f"message {self._programs.name(index)} is none of rank {self._channel.rank}'s")
        return layout

    def _post(self, sender: int) -> None:
        coming, posted = self._coming[sender], self._posted[sender]
        while coming and len(posted) < self._window[sender]:
            index = coming.popleft()
            buffer = self._layout(index).empty(self._channel.device)
            try:
                work = dist.irecv(buffer, sender, group=self._channel.group(sender, self._channel.rank))
            except RuntimeError as error:
                raise RunError(self._failed("could not hear from", sender, index, error)) from None
            posted.append(_Posted(index, buffer, work))

    def _wait(self, work: Any, sender: int, index: int) -> None:
        began = now()
        self.waiting = f"for rank {sender} ({self._channel.names[sender]}) on {self._describe(index)}"
        try:
            work.wait(timedelta(seconds=self._channel.timeout))
        except RuntimeError as error:
            waited = f"waited {now() - began:.1f} s for"
            raise RunError(self._failed(waited, sender, index, error)) from None
        self.waiting = ""

    def _reap(self) -> None:
        """Let go of what has been sent; at most a window's worth stays, so buffers can't pile up."""
        while self._sending and self._sending[0][2].is_completed():
            self._sending.popleft()

    def _describe(self, index: int) -> str:
        message = self._programs.messages[index]
        edge = self._programs.placement.edges[message.edge]
        stages = self._programs.placement.stages
        batch = "every micro-batch" if message.micro_batch == ALL else f"micro-batch {message.micro_batch}"
        ends = (edge.source, edge.target) if message.direction is Direction.FORWARD else (edge.target, edge.source)
        return f"{stages[ends[0]].name} → {stages[ends[1]].name}, {batch}, {message.direction}"

    def _failed(self, what: str, peer: int, index: int, error: RuntimeError) -> str:
        channel = self._channel
        reason = reason_of(error)
        return (
            f"rank {channel.rank} ({channel.names[channel.rank]}) {what} rank {peer} ({channel.names[peer]}) on "
            f"{self._describe(index)}: {reason}"
        )

"""The execution of one rank's program. It never decides an order: the program is the order."""

from collections.abc import Callable

import torch

from plait.runtime.clocks import now
from plait.runtime.compute import Compute
from plait.runtime.pacing import Pace, sleep_until
from plait.runtime.record import Record
from plait.runtime.reduction import Reducer
from plait.runtime.transport import Transport
from plait.schedule.action import Action
from plait.schedule.lower import maker
from plait.schedule.program import Direction, Instruction, Op, Programs
from plait.simulate.timeline import Lane


class Executor:
    """Runs a program once. ``transport`` and ``reducer`` are None for a rank that has no others."""

    def __init__(  # noqa: PLR0913
        self, programs: Programs, rank: int, compute: Compute, record: Record, device: torch.device, *,
        transport: Transport | None, reducer: Reducer | None, pace: Pace | None, fixed_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._programs = programs
        self._rank = rank
        self._compute = compute
        self._record = record
        self._device = device
        self._transport = transport
        self._reducer = reducer
        self._pace = pace
        self._fixed_bytes = fixed_bytes

    def run(self, step: Callable[[], None]) -> None:
        """Run the program; ``step`` does the optimizer's step when all gradients are there."""
        self._record.start = now()
        self._record.hold(self._record.start, self._fixed_bytes)
        if self._transport is not None:
            self._transport.begin()
        for instruction in self._programs.ranks[self._rank]:
            self._run(instruction, step)
        if self._transport is not None:
            self._transport.finish()
        self._record.end = now()

    def _run(self, instruction: Instruction, step: Callable[[], None]) -> None:
        match instruction.op:
            case Op.COMPUTE if instruction.action is not None:
                self._compute_action(instruction.action)
            case Op.SEND:
                self._send(instruction.index)
            case Op.RECV:
                self._receive(instruction.index)
            case Op.REDUCE if self._reducer is not None:
                self._reducer.begin(instruction.index)
            case Op.STEP:
                self._finish_reductions()
                step()

    def _compute_action(self, action: Action) -> None:
        begun = now()
        self._compute.run(action)
        self._synchronize()
        self._record.work += now() - begun
        if self._pace is not None:
            sleep_until(begun + self._price(action))
        ended = now()
        self._record.add(Lane.COMPUTE, str(action), begun, ended, stage=action.stage, micro_batch=action.micro_batch)
        self._record.hold(ended, self._fixed_bytes + self._compute.held_bytes)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _price(self, action: Action) -> float:
        if self._pace is None:
            return 0.0
        samples = self._programs.placement.samples(action.micro_batch)
        price = self._pace.prices.stages.get((action.stage, self._rank, samples))
        return price.seconds(action.kind) if price else 0.0

    def _send(self, index: int) -> None:
        message = self._programs.messages[index]
        exchange = self._compute.exchange
        box = exchange.values if message.direction is Direction.FORWARD else exchange.gradients
        tensors = box.pop((message.edge, message.micro_batch))
        if self._transport is None:
            return
        begun = now()
        delivered = self._transport.send(index, tensors)
        self._note(Lane.SEND, index, begun, delivered)

    def _receive(self, index: int) -> None:
        if self._transport is None:
            return
        message = self._programs.messages[index]
        begun = now()
        tensors = self._transport.receive(index)
        exchange = self._compute.exchange
        box = exchange.values if message.direction is Direction.FORWARD else exchange.gradients
        box[message.edge, message.micro_batch] = tensors
        self._note(Lane.WAIT, index, begun, now())

    def _note(self, lane: Lane, index: int, begun: float, ended: float) -> None:
        message = self._programs.messages[index]
        stage = maker(self._programs.placement, message)[2]
        label = self._programs.name(index)
        self._record.add(lane, label, begun, ended, stage=stage, micro_batch=message.micro_batch, nbytes=message.nbytes)

    def _finish_reductions(self) -> None:
        if self._reducer is None:
            return
        for index, begun, ended in self._reducer.finish():
            if self._pace is not None:
                sleep_until(begun + self._pace.prices.reductions[index])
            nbytes = self._programs.reductions[index].nbytes
            self._record.add(Lane.REDUCE, f"reduce {index}", begun, max(ended, now()), nbytes=nbytes)

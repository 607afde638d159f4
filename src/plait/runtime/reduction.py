"""Gradients summed over the ranks that hold the same parameters, beside the rest of the step."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plait.errors import RunError
from plait.runtime.clocks import now
from plait.runtime.reasons import reason_of
from plait.schedule.placement import Reduction


class Groups:
    """Process groups by rank set; made once, in the same order on every rank, as torch.distributed demands.

    ``pairs`` are the directed pairs that need a group of their own, so that their messages don't wait for others'.
    """

    def __init__(self, ranks: int, sets: Sequence[tuple[int, ...]], pairs: Sequence[tuple[int, int]] = ()) -> None:
        everyone = tuple(range(ranks))
        self._groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {everyone: None}
        for members in dict.fromkeys(sets):
            if members not in self._groups:
                self._groups[members] = dist.new_group(list(members))
        self._pairs = {pair: dist.new_group(sorted(pair)) for pair in pairs}

    def __getitem__(self, members: tuple[int, ...]) -> dist.ProcessGroup | None:
        return self._groups[members]

    def pair(self, sender: int, receiver: int) -> dist.ProcessGroup | None:
        """The group for messages from sender to receiver; None is the one of all ranks."""
        return self._pairs.get((sender, receiver))


class Reducer:
    """The reductions of one rank in one step."""

    def __init__(
        self, rank: int, reductions: Sequence[Reduction], parameters: Mapping[str, nn.Parameter], groups: Groups,
        timeout: float,
    ) -> None:  # fmt: skip
        self._rank = rank
        self._reductions = reductions
        self._parameters = parameters
        self._groups = groups
        self._timeout = timeout
        self._begun: list[tuple[int, list[nn.Parameter], Tensor, Any, float]] = []

    def begin(self, index: int) -> None:
        """Start summing; a parameter that got no gradient here contributes zeros.

        Behind the gradients stands for each parameter how many ranks got one: where none did there is none, and
        the optimizer leaves the parameter alone.
        """
        reduction = self._reductions[index]
        own = [self._parameters[name] for name in reduction.parameters]
        got = torch.tensor([float(p.grad is not None) for p in own], dtype=own[0].dtype, device=own[0].device)
        flat = torch.cat([*(_gradient(p).reshape(-1) for p in own), got])
        work = dist.all_reduce(flat, group=self._groups[reduction.ranks], async_op=True)
        self._begun.append((index, own, flat, work, now()))

    def finish(self) -> list[tuple[int, float, float]]:
        """Wait for all sums and put them in place; gives (reduction, begun, ended) on this rank's clock."""
        spans = []
        for index, own, flat, work, begun in self._begun:
            try:
                work.wait(timedelta(seconds=self._timeout))
            except RuntimeError as error:
                others = [r for r in self._reductions[index].ranks if r != self._rank]
                raise RunError(
                    f"rank {self._rank} waited for the ranks {others} to sum gradients of "
                    f"{_some(self._reductions[index].parameters)}: {reason_of(error)}"
                ) from None
            *parts, got = torch.split(flat, [*(p.numel() for p in own), len(own)])
            for parameter, part, ranks in zip(own, parts, got.tolist(), strict=True):
                parameter.grad = part.view_as(parameter) if ranks else None
            spans.append((index, begun, now()))
        self._begun = []
        return spans


def _gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _some(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")

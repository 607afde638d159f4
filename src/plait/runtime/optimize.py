"""The end of a step: one barrier that makes the global gradient norm known to all, then the optimizer."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plait.errors import CheckpointError, RunError
from plait.runtime.reasons import reason_of

OptimizerFactory = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
"""Makes the optimizer of this rank's parameters, given with their names."""
SchedulerFactory = Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all ranks know after the barrier."""

    loss: float
    norm: float
    finite: bool


@dataclass
class Update:
    """The optimizer of one rank. ``counted`` are the parameters whose norm this rank answers for."""

    optimizer: Optimizer | None
    scheduler: LRScheduler | None
    parameters: Mapping[str, nn.Parameter]
    counted: frozenset[str]
    max_norm: float | None
    device: torch.device
    alone: bool
    timeout: float
    skipped: int = 0
    """Steps left out because a gradient was not finite."""
    last: Outcome = field(default_factory=lambda: Outcome(0.0, 0.0, True))

    def agree(self, loss: float, *, counting: bool = True) -> Outcome:
        """The barrier: every rank's part of the loss and, if ``counting``, of the squared norm, summed."""
        counted = [p.grad for n, p in self.parameters.items() if counting and n in self.counted and p.grad is not None]
        square = get_total_norm(counted).double() ** 2 if counted else torch.zeros((), dtype=torch.float64)
        known = torch.stack([torch.tensor(loss, dtype=torch.float64, device=self.device), square.to(self.device)])
        if not self.alone:
            try:
                dist.all_reduce(known, async_op=True).wait(timedelta(seconds=self.timeout))
            except RuntimeError as error:
                raise RunError(
                    f"rank {dist.get_rank()} waited for every rank to end its step, and one of them did not: "
                    f"{reason_of(error)}"
                ) from None
        total, squared = known.tolist()
        norm = math.sqrt(squared) if squared >= 0 else math.nan
        outcome = Outcome(total, norm, math.isfinite(total) and math.isfinite(norm))
        self.last = outcome if counting else self.last
        return outcome

    def step(self, outcome: Outcome) -> None:
        """Clip by the global norm and step; all ranks skip the step together where a gradient isn't finite."""
        if not outcome.finite:
            self.skipped += 1
        elif self.optimizer is not None:
            self._clip(outcome.norm)
            self.optimizer.step()
        if self.scheduler is not None and outcome.finite:
            self.scheduler.step()
        for parameter in self.parameters.values():
            parameter.grad = None

    def _clip(self, norm: float) -> None:
        if self.max_norm is not None:
            clip_grads_with_norm_(self.parameters.values(), self.max_norm, torch.tensor(norm))

    def rates_of_all(self) -> dict[str, Any]:
        """Learning rates and the scheduler's state, of the lowest rank that trains anything."""
        own = None
        if self.optimizer is not None:
            rates = [float(group["lr"]) for group in self.optimizer.param_groups]
            own = {"lr": rates, "scheduler": _plain(self.scheduler.state_dict()) if self.scheduler else None}
        if self.alone:
            return own or {}
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own)
        return next((rates for rates in found if rates), {})

    def restore_rates(self, rates: Mapping[str, Any] | None) -> None:
        """Take up what ``rates_of_all`` gave."""
        if not rates or self.optimizer is None:
            return
        groups = self.optimizer.param_groups
        if len(groups) != len(rates["lr"]):
            raise CheckpointError(
                f"the checkpoint has {len(rates['lr'])} groups of parameters, the optimizer {len(groups)}; give the "
                "optimizer as before"
            )
        if self.scheduler is not None and rates["scheduler"]:
            self.scheduler.load_state_dict(rates["scheduler"])
        for group, rate in zip(groups, rates["lr"], strict=True):
            group["lr"] = rate


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold of a scheduler's state: functions (LambdaLR's) are given anew by the user."""
    return {name: value for name, value in state.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for item in value.values())
    return value is None or isinstance(value, (bool, int, float, str))

"""The end of a step: one barrier that makes the global gradient norm known to all, then the optimizer."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from plait.errors import RunError
from plait.runtime.groups import NamedParameters
from plait.runtime.rates import Settings, check_alike, gathered, restore, settings_of
from plait.runtime.reasons import reason_of

OptimizerFactory = Callable[[NamedParameters], Optimizer]
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
        if outcome.finite:
            self._step_scheduler(outcome.loss)
        for parameter in self.parameters.values():
            parameter.grad = None

    def _step_scheduler(self, loss: float) -> None:
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(loss)
        elif self.scheduler is not None:
            self.scheduler.step()

    def _clip(self, norm: float) -> None:
        if self.max_norm is not None:
            clip_grads_with_norm_(self.parameters.values(), self.max_norm, torch.tensor(norm))

    def settings_of_all(self) -> Settings | None:
        """Groups and the scheduler's state, of the lowest rank that trains anything; every rank must call it."""
        found = gathered(settings_of(self.optimizer, self.scheduler), alone=self.alone)
        return next((settings for settings in found if settings), None)

    def check_groups(self) -> None:
        """Raise RunError unless the groups are the same on every rank; every rank must call it."""
        check_alike(gathered(settings_of(self.optimizer, self.scheduler), alone=self.alone))

    def restore(self, settings: Mapping[str, Any] | None) -> None:
        """Take up what ``settings_of_all`` gave."""
        if settings and self.optimizer is not None:
            restore(settings, self.optimizer, self.scheduler)

"""The job's optimizer and learning-rate schedule, as the engine asks for them."""

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from plait.errors import FileError
from plait.job.job import Job, SchedulerJob
from plait.job.resolve import call

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from plait.runtime.optimize import OptimizerFactory, SchedulerFactory


def optimizer_of(job: Job) -> "OptimizerFactory":
    """Makes the job's optimizer from named parameters; raises FileError where its name or an option is wrong."""
    kind = _class(job)
    where = f"{job.path}: optimizer.options"

    def make(params: "Iterable[tuple[str, nn.Parameter]]") -> "Optimizer":
        made: Optimizer = call(kind, {"params": _groups(job, params), **job.optimizer.options}, where)
        return made

    _try(make)
    return make


def scheduler_of(job: Job) -> "SchedulerFactory | None":
    """Makes the job's learning-rate schedule from an optimizer; None where the rate stays."""
    settings = job.scheduler
    if settings is None:
        return None

    def make(optimizer: "Optimizer") -> "LRScheduler":
        from torch.optim.lr_scheduler import LambdaLR

        return LambdaLR(optimizer, lambda step: rate(settings, step, job.steps))

    return make


def rate(settings: SchedulerJob, step: int, steps: int) -> float:
    """Share of the full learning rate at ``step``, counted from 0."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = min(1.0, (step - settings.warmup) / max(1, steps - settings.warmup))
    return settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * done))


def _class(job: Job) -> Any:
    import torch

    found = getattr(torch.optim, job.optimizer.name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        known = [
            n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)
        ]
        known = sorted(n for n in known if n != "Optimizer")
        raise FileError(
            f"{job.path}: optimizer.name: {job.optimizer.name!r} is not in torch.optim; it has {', '.join(known)}"
        )
    return found


def _groups(job: Job, params: "Iterable[tuple[str, nn.Parameter]]") -> list[dict[str, Any]]:
    """With and without decay; always both, so that every rank has the same groups, be one empty."""
    named = list(params)
    if not job.optimizer.no_decay:
        return [{"params": [p for _, p in named]}]
    free = [p for n, p in named if any(fnmatchcase(n, pattern) for pattern in job.optimizer.no_decay)]
    ids = {id(p) for p in free}
    return [{"params": [p for _, p in named if id(p) not in ids]}, {"params": free, "weight_decay": 0.0}]


def _try(make: "OptimizerFactory") -> None:
    """Options that the optimizer refuses show at once, not when four processes have started."""
    import torch

    make([("weight", torch.nn.Parameter(torch.zeros(1)))])

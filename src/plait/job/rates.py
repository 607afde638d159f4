"""The job's learning-rate schedule, as the engine asks for it."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.errors import FileError
from plait.job.job import Job, SchedulerJob
from plait.job.resolve import call, check_options, resolve, with_given
from plait.job.update import class_of, optimizer_of

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from plait.model.capture import Captured
    from plait.runtime.optimize import SchedulerFactory


def scheduler_of(job: Job) -> "SchedulerFactory | None":
    """Makes the job's learning-rate schedule from an optimizer; None where the rate stays.

    Raises FileError where its name or an option is wrong.
    """
    settings = job.scheduler
    if settings is None:
        return None
    if settings.name is None and settings.factory is None:
        return _cosine(settings, job.steps)
    return _made(job, settings)


def check_update(job: Job, *captured: "Captured") -> None:
    """Make optimizer and scheduler once and forget them; raises FileError where they don't suit the model.

    ``captured`` is the model, of tasks as captured for each.
    """
    from plait.runtime.groups import NamedParameters, trained_branches

    branches = trained_branches(one.graph for one in captured)
    first = captured[0]
    own = [(first.canonical.get(n, n), p) for n, p in first.model.named_parameters()]
    optimizer = optimizer_of(job)(NamedParameters([(n, p) for n, p in own if n in branches], branches))
    make = scheduler_of(job)
    if make is not None:
        _one_step(job, optimizer, make(optimizer))


def _one_step(job: Job, optimizer: "Optimizer", scheduler: "LRScheduler") -> None:
    """Schedulers look at the type of some options only when they step. There are no gradients: no weight changes."""
    optimizer.step()
    try:
        if not isinstance(scheduler, _plateau()):
            scheduler.step()
    except (TypeError, ValueError) as error:
        raise FileError(f"{job.path}: scheduler.options: {type(scheduler).__name__} refuses them: {error}") from error


def _plateau() -> type:
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    return ReduceLROnPlateau


def rate(settings: SchedulerJob, step: int, steps: int) -> float:
    """Share of the full learning rate at ``step``, counted from 0, of a warm-up and a cosine."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    done = min(1.0, (step - settings.warmup) / max(1, steps - settings.warmup))
    return settings.floor + (1 - settings.floor) * 0.5 * (1 + math.cos(math.pi * done))


def _cosine(settings: SchedulerJob, steps: int) -> "SchedulerFactory":
    def make(optimizer: "Optimizer") -> "LRScheduler":
        from torch.optim.lr_scheduler import LambdaLR

        return LambdaLR(optimizer, lambda step: rate(settings, step, steps))

    return make


def _made(job: Job, settings: SchedulerJob) -> "SchedulerFactory":
    kind = _kind(job, settings)
    where = f"{job.path}: scheduler.options"
    options = with_given(kind, settings.options, {"steps": job.steps})
    check_options(kind, options, where, first=1)

    def make(optimizer: "Optimizer") -> "LRScheduler":
        return _warmed(job, settings, optimizer, lambda: _checked(job, call(kind, options, where, optimizer)))

    return make


def _warmed(
    job: Job, settings: SchedulerJob, optimizer: "Optimizer", after: "Callable[[], LRScheduler]"
) -> "LRScheduler":
    from torch.optim.lr_scheduler import LambdaLR, SequentialLR

    if not settings.warmup:
        return after()
    first = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / settings.warmup))
    then = after()
    if isinstance(then, _plateau()):
        raise FileError(f"{job.path}: scheduler.warmup: ReduceLROnPlateau follows the loss and takes no warm-up")
    return SequentialLR(optimizer, [first, then], milestones=[settings.warmup])


def _kind(job: Job, settings: SchedulerJob) -> Callable[..., Any]:
    from torch.optim import lr_scheduler

    where = f"{job.path}: scheduler"
    if settings.factory is not None:
        found: Callable[..., Any] = resolve(settings.factory, job.modules_folder, f"{where}.factory")
        return found
    return class_of(lr_scheduler, str(settings.name), lr_scheduler.LRScheduler, f"{where}.name")


def _checked(job: Job, made: Any) -> "LRScheduler":
    from torch.optim.lr_scheduler import LRScheduler

    if not isinstance(made, LRScheduler):
        given = job.scheduler.factory if job.scheduler else None
        raise FileError(f"{job.path}: scheduler.factory: {given} gives a {type(made).__name__}, no LRScheduler")
    return made

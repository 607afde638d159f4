"""The job's optimizer, as the engine asks for it."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plait.errors import FileError, RunError
from plait.job.job import Job
from plait.job.resolve import call, check_options, resolve
from plait.plan.groups import GroupRule

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from plait.runtime.groups import NamedParameters
    from plait.runtime.optimize import OptimizerFactory


def optimizer_of(job: Job) -> "OptimizerFactory":
    """Makes the job's optimizer from named parameters; raises FileError where its name or an option is wrong."""
    kind = _kind(job)
    where = f"{job.path}: optimizer"
    check_options(kind, job.optimizer.options, f"{where}.options", first=1)

    def make(params: "NamedParameters") -> "Optimizer":
        return checked(job, call(kind, job.optimizer.options, f"{where}.options", _groups(job, params)))

    if job.optimizer.factory is None:
        _try(job, kind)
    return make


def checked(job: Job, made: Any) -> "Optimizer":
    """What was made, if the engine can use it."""
    from torch.optim import Optimizer

    where = f"{job.path}: optimizer"
    if not isinstance(made, Optimizer):
        raise FileError(f"{where}.factory: {job.optimizer.factory} gives a {type(made).__name__}, no torch Optimizer")
    needed = [n for n, p in inspect.signature(made.step).parameters.items() if p.default is p.empty and p.kind < 2]
    if needed:
        raise FileError(f"{where}: {type(made).__name__}.step needs a {needed[0]}, which plait cannot give")
    for index, rule in enumerate(job.optimizer.groups):
        unknown = [name for name in rule.options if name not in made.defaults]
        if unknown:
            raise FileError(
                f"{where}.groups.{index}.options: {type(made).__name__} has no option {unknown[0]!r}; it has "
                f"{', '.join(made.defaults)}"
            )
    return made


def _kind(job: Job) -> Callable[..., Any]:
    import torch

    if job.optimizer.factory is not None:
        found: Callable[..., Any] = resolve(job.optimizer.factory, job.modules_folder, f"{job.path}: optimizer.factory")
        return found
    return class_of(torch.optim, job.optimizer.name, torch.optim.Optimizer, f"{job.path}: optimizer.name")


def class_of(module: Any, name: str, base: type, where: str) -> type:
    """The class ``name`` of ``module``, made from ``base``; raises FileError with those that there are."""
    known = {n: c for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, base) and n[0] != "_"}
    known = {n: c for n, c in known.items() if c is not base}
    if name not in known:
        raise FileError(f"{where}: {name!r} is not in {module.__name__}; it has {', '.join(sorted(known))}")
    return known[name]


def _groups(job: Job, params: "NamedParameters") -> Any:
    """Groups where the job gives rules, the same on every rank; else the (name, parameter) pairs."""
    from plait.runtime.groups import parameter_groups

    rules = {f"groups.{index}": rule for index, rule in enumerate(job.optimizer.groups)}
    if job.optimizer.no_decay:
        rules["no_decay"] = GroupRule(names=job.optimizer.no_decay, options={"weight_decay": 0.0})
    try:
        return parameter_groups(params, rules) if rules else params
    except RunError as error:
        raise FileError(f"{job.path}: optimizer.{error}") from None


def _try(job: Job, kind: Callable[..., Any]) -> None:
    """Options that the optimizer refuses show at once, not when four processes have started."""
    import torch

    weight = torch.nn.Parameter(torch.zeros(1, 1))
    checked(job, call(kind, job.optimizer.options, f"{job.path}: optimizer.options", [weight]))

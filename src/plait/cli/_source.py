"""What ``plait capture`` captures: a job's model, or what a function of the user's makes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.cli._common import capture_job, example_of
from plait.errors import FileError
from plait.job.job import Job
from plait.job.tasks import jobs_of
from plait.model.precision import precision_of

if TYPE_CHECKING:
    from plait.model.capture import Captured

_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def captured_of(
    model: str,
    example: str | None,
    loss: str | None,
    scopes: Mapping[str, str],
    precision: str | None = None,
    branches: str | None = None,
) -> dict[str, "Captured"]:
    """``model`` captured: the path of a job, or ``module:function``; raises FileError where it is neither.

    A job's tasks are captured each, under their names; anything else under "".
    """
    if _REFERENCE.fullmatch(model) and not Path(model).exists():
        return {"": _capture_function(model, example, loss, scopes, precision or "fp32", branches)}
    if example is not None or loss is not None or branches is not None:
        raise FileError(
            f"{model}: a job has its own data, loss and branches; --example, --loss and --branches go with "
            "module:function"
        )
    job = Job.load(model)
    if precision is not None:
        job = job.model_copy(update={"precision": precision_of(precision)})
    return {name: capture_job(one, example_of(one), scopes) for name, one in jobs_of(job).items()}


def _capture_function(
    model: str,
    example: str | None,
    loss: str | None,
    scopes: Mapping[str, str],
    precision: str,
    branches: str | None,
) -> "Captured":
    from plait.model.capture import capture

    made = _made(model, "MODEL")
    if example is not None:
        module, batch = made, _made(example, "--example")
    elif isinstance(made, tuple) and len(made) == 2:
        module, batch = made
    else:
        raise FileError(
            f"MODEL: {model} gives a {type(made).__name__}; give --example module:function, which makes a batch, or "
            "let it return (model, batch)"
        )
    _check(module, batch, model, example or model)
    asked = None if loss is None else _found(loss, "--loss")
    described = None if branches is None else _made(branches, "--branches", module)
    return capture(module, batch, loss=asked, scopes=scopes, precision=precision, branches=described)


def _made(reference: str, where: str, *given: Any) -> Any:
    from plait.job.resolve import call

    return call(_found(reference, where), {}, where, *given)


def _found(reference: str, where: str) -> Any:
    from plait.job.resolve import resolve

    return resolve(reference, Path.cwd(), where)


def _check(module: Any, batch: Any, model: str, example: str) -> None:
    from torch import nn

    if not isinstance(module, nn.Module):
        raise FileError(f"MODEL: {model} gives a {type(module).__name__}, no nn.Module")
    if not isinstance(batch, Mapping):
        raise FileError(f"{example} gives a {type(batch).__name__} as a batch; it must be tensors by name (a dict)")

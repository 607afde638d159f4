"""A job's metric: the user's function of outputs and held-out inputs, and its figures by name."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from plait.errors import RunError
from plait.job.job import Job
from plait.job.resolve import resolve, theirs
from plait.job.tasks import jobs_of


def metric_of(job: Job) -> Callable[..., Any] | None:
    """The job's metric; None where it has none. Raises FileError naming the field."""
    if job.evaluate is None:
        return None
    found: Callable[..., Any] = resolve(job.evaluate.metric, job.modules_folder, job.where("evaluate.metric"))
    return found


def check_metrics(job: Job) -> None:
    """Raise FileError unless the metric of the job, or of each task, is there: before training, not after it."""
    for one in jobs_of(job).values():
        metric_of(one)


def figures_of(job: Job, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """What the metric says, by name; nothing without one. Raises RunError where it raises or gives no number."""
    metric = metric_of(job)
    if metric is None or job.evaluate is None:
        return {}
    name = job.evaluate.metric
    with theirs("evaluate.metric", name, RunError):
        return _named(name.rpartition(":")[2], metric(outputs, inputs))


def _named(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {str(key): float(number) for key, number in value.items()}
    return {name: float(value)}

"""What plait asks of the object that a job's ``data.factory`` makes."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from plait.errors import FileError
from plait.job.job import Job
from plait.job.resolve import call, resolve, with_given


@runtime_checkable
class Data(Protocol):
    """Batches of a data set. Every rank makes its own, and all must give the same.

    An option ``seed`` that the job does not give is the job's seed, and ``batch`` its global batch, where the factory
    has such options.
    """

    def batch(self, step: int) -> Mapping[str, Any]:
        """Tensors by name over the global batch of this step, counted from 0, the samples along their first axis.

        It must depend on the step and the seed alone: a run that is resumed asks only for the steps to come.
        """
        ...

    def held_out(self) -> Iterable[Mapping[str, Any]]:
        """Batches to evaluate on, of any size. They may hold more than the model takes (labels) for the metric."""
        ...


def data_of(job: Job) -> Data:
    """The job's data; raises FileError naming the field that is wrong."""
    where = f"{job.path}: data"
    if job.data is None:
        raise FileError(f"{where}: missing; the job's tasks have each their own")
    factory = resolve(job.data.factory, job.modules_folder, f"{where}.factory")
    options = with_given(factory, job.data.options, {"seed": job.seed, "batch": job.global_batch})
    data = call(factory, options, f"{where}.options")
    missing = [name for name in ("batch", "held_out") if not callable(getattr(data, name, None))]
    if missing:
        raise FileError(
            f"{where}.factory: {job.data.factory} gives a {type(data).__name__} without {missing[0]}(); data needs "
            "batch(step) and held_out()"
        )
    return data  # type: ignore[no-any-return]

"""The job's data: what its factory gives, as batches to train on and to evaluate on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from plait.errors import FileError, RunError
from plait.job.job import DataJob, Job
from plait.job.resolve import call, resolve, theirs, with_given

if TYPE_CHECKING:
    from plait.job.feed import Fed, Feed, Position, Positions

T = TypeVar("T")


class _End:
    """There is nothing more."""


_END = _End()


@dataclass(frozen=True)
class Data:
    """Batches of a job. Every rank makes its own, and all must give the same."""

    job: Job
    settings: DataJob
    feed: "Feed"
    own: Any
    """What the factory gave."""

    def batches(self, step: int, position: "Position" = None, read: "Positions | None" = None) -> "Iterator[Fed]":
        """Global batches from a step on, or of a dataset the samples that ``read`` tells.

        Raises RunError where the user's data raise anything.
        """
        if self.settings.whole or (self.settings.whole is None and self.settings.collate is not None):
            read = None
        for fed in _told(self.settings.factory, self.feed.batches(step, position, read)):
            _check(self.settings.factory, fed.batch)
            yield fed

    def first(self) -> dict[str, Any]:
        """The first global batch."""
        return dict(next(self.batches(0)).whole)

    def held_out(self) -> Iterator[Mapping[str, Any]]:
        """Batches to evaluate on, of any size. They may hold more than the model takes (labels) for the metric."""
        self.check_held_out()
        if self.settings.held_out is None:
            return _told(self.settings.factory, iter(self.own.held_out()))
        made = _made(self.job, self.settings.held_out, "held_out")
        return _told(self.settings.held_out, _once(self.job, made))

    def check_held_out(self) -> None:
        """Raise FileError where there is nothing to evaluate on."""
        if self.settings.held_out is None and not callable(getattr(self.own, "held_out", None)):
            raise FileError(f"{self.job.where('data')}.held_out: missing; evaluate needs data to evaluate on")


def data_of(job: Job) -> Data:
    """The job's data; raises FileError naming the field that is wrong."""
    settings = _settings(job)
    own = _made(job, settings.factory, "factory")
    data = Data(job, settings, _feed(job, own), own)
    if job.evaluate is not None:
        data.check_held_out()
    return data


def _made(job: Job, reference: str, field: str) -> Any:
    where = job.where("data")
    factory = resolve(reference, job.modules_folder, f"{where}.{field}")
    options = with_given(factory, _settings(job).options, {"seed": _seed(job), "batch": job.global_batch})
    return call(factory, options, f"{where}.options")


def _settings(job: Job) -> DataJob:
    if job.data is None:
        raise FileError(f"{job.path}: data: missing; the job's tasks have each their own")
    return job.data


def _seed(job: Job) -> int:
    seed = _settings(job).seed
    return job.seed if seed is None else seed


def _feed(job: Job, own: Any) -> "Feed":
    from torch.utils.data import DataLoader, IterableDataset

    from plait.job.feed import ByStep, Indexed, Iterated

    settings, where = _settings(job), job.where("data")
    size = job.global_batch
    if callable(getattr(own, "batch", None)):
        _refuse(job, "data with batch(step)", ("collate", "shuffle", "workers", "drop_last", "batched", "whole"))
        return ByStep(own.batch)
    if hasattr(own, "__getitem__") and hasattr(own, "__len__") and not isinstance(own, IterableDataset):
        _refuse(job, "a map-style dataset", ("batched",))
        return Indexed(
            own,
            size,
            shuffle=settings.shuffle,
            seed=_seed(job),
            workers=settings.workers,
            drop_last=settings.drop_last,
            collate=_collate(job),
        )
    if hasattr(own, "__iter__"):
        batched = isinstance(own, DataLoader) if settings.batched is None else settings.batched
        _refuse(job, "an iterable", ("shuffle", "workers", "whole", *(("collate", "drop_last") if batched else ())))
        collate = None if batched else _collate(job)
        return Iterated(own, size, seed=_seed(job), collate=collate, drop_last=settings.drop_last)
    raise FileError(
        f"{where}.factory: {settings.factory} gives a {type(own).__name__}; data is a dataset (__getitem__ and "
        "__len__), an iterable, a DataLoader, or has batch(step) and held_out()"
    )


def _refuse(job: Job, kind: str, fields: Iterable[str]) -> None:
    """Fields that have no effect on such data are refused, not passed over."""
    for field in fields:
        if field in _settings(job).model_fields_set:
            given = _settings(job).factory
            raise FileError(f"{job.where('data')}.{field}: it has no effect on {kind}, which {given} gives")


def _collate(job: Job) -> Any:
    from torch.utils.data import default_collate

    collate = _settings(job).collate
    if collate is None:
        return default_collate
    return resolve(collate, job.modules_folder, job.where("data.collate"))


def _check(reference: str, batch: Any) -> None:
    """Raise RunError unless it is a mapping; the engine checks what is in it."""
    from plait.runtime.batch import Portion

    batch = batch.inputs if isinstance(batch, Portion) else batch
    if not isinstance(batch, Mapping):
        raise RunError(
            f"data: {reference} gives a {type(batch).__name__} as a batch; a batch maps the model's inputs to "
            "tensors (data.collate can make it)"
        )


def _told(reference: str, source: Iterator[T]) -> Iterator[T]:
    """What ``source`` gives; raises RunError in place of what the user's code raises."""
    while True:
        with theirs("data", reference, RunError):
            item = next(source, _END)
        if isinstance(item, _End):
            return
        yield item


def _once(job: Job, own: Any) -> Iterator[Mapping[str, Any]]:
    """One pass in order."""
    from torch.utils.data import DataLoader

    if hasattr(own, "__getitem__") and hasattr(own, "__len__"):
        own = DataLoader(own, batch_size=job.global_batch, collate_fn=_collate(job))
    elif not (isinstance(own, DataLoader) or _settings(job).batched):
        from plait.job.feed import Iterated

        yield from Iterated(own, job.global_batch, seed=_seed(job), collate=_collate(job), drop_last=False).once()
        return
    yield from own

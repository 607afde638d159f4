"""Feeds: the global batches of a run, step by step, from whatever the user's function gives."""

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DataLoader, Dataset

from plait.errors import RunError
from plait.runtime.batch import Portion

Position = dict[str, Any] | None
"""Where a feed stands, as JSON; None where the number of the step tells it."""
Collate = Callable[[list[Any]], Mapping[str, Any]]


Positions = Callable[[int], Sequence[int]]
"""Samples of a global batch → which of them are read here."""


class Fed(NamedTuple):
    """A global batch or what is read of it here, and where the feed stands after it."""

    batch: Mapping[str, Any] | Portion
    after: Position

    @property
    def whole(self) -> Mapping[str, Any]:
        """The batch, where it was asked for whole."""
        return self.batch.inputs if isinstance(self.batch, Portion) else self.batch


class Feed(Protocol):
    """Gives the batches from a step on. Every rank has its own, and all must give the same."""

    def batches(self, step: int, position: Position, read: Positions | None = None) -> Iterator[Fed]:
        """The batches of step ``step`` and later, ``position`` being where the feed stood before it.

        Where no more than ``read`` tells is needed, a feed that can gives portions.
        """
        ...


class ByStep:
    """An object with ``batch(step)``."""

    def __init__(self, batch: Callable[[int], Mapping[str, Any]]) -> None:
        self._batch = batch

    def batches(self, step: int, position: Position, read: Positions | None = None) -> Iterator[Fed]:  # noqa: ARG002
        """See ``Feed``."""
        while True:
            yield Fed(self._batch(step), None)
            step += 1


class Indexed:
    """A map-style dataset, in another order each epoch if ``shuffle``. A step's number tells its samples."""

    def __init__(
        self, dataset: Any, size: int, *, shuffle: bool, seed: int, workers: int, drop_last: bool, collate: Collate
    ) -> None:
        self._dataset, self._size, self._shuffle, self._seed = dataset, size, shuffle, seed
        self._workers, self._collate = workers, collate
        self._count = len(dataset)
        self._per_epoch = self._count // size if drop_last else -(-self._count // size)
        if not self._per_epoch:
            raise RunError(f"data: its {self._count} samples fill no batch of {size}; drop_last leaves none")

    def indices(self, step: int) -> list[int]:
        """The samples of a step."""
        epoch, place = divmod(step, self._per_epoch)
        chosen = self._order(epoch) if self._shuffle else range(self._count)
        return list(chosen[place * self._size : (place + 1) * self._size])

    def _order(self, epoch: int) -> list[int]:
        chance = torch.Generator().manual_seed(epoch_seed(self._seed, epoch))
        order: list[int] = torch.randperm(self._count, generator=chance).tolist()
        return order

    def batches(self, step: int, position: Position, read: Positions | None = None) -> Iterator[Fed]:  # noqa: ARG002
        """See ``Feed``."""
        collate = self._collate if read is None else _Portions(self._collate)
        loader = DataLoader(
            _Seeded(self._dataset, self._seed),
            batch_sampler=self._sampler(step, read),
            num_workers=self._workers,
            collate_fn=collate,
        )
        for batch in loader:
            yield Fed(batch, None)

    def _sampler(self, step: int, read: Positions | None) -> Iterator[list[Any]]:
        while True:
            epoch, indices = step // self._per_epoch, self.indices(step)
            positions = range(len(indices)) if read is None else read(len(indices))
            samples = [(epoch, indices[p]) for p in positions]
            yield samples if read is None else [(len(indices), tuple(positions)), *samples]
            step += 1


class _Portions:
    """Puts samples together to a portion. The first item is no sample: it tells of which batch they are."""

    def __init__(self, collate: Collate) -> None:
        self._collate = collate

    def __call__(self, items: list[Any]) -> Portion:
        (samples, positions), *found = items
        return Portion(samples, positions, self._collate(found) if found else {})


class _Seeded(Dataset[Any]):
    """In a worker process each sample draws its own random numbers, the same on every rank and after a resume."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitem__(self, key: tuple[int, Any]) -> Any:
        epoch, index = key
        if isinstance(index, tuple):
            return key
        if torch.utils.data.get_worker_info() is not None:
            _seed(hash((self._seed, epoch, index)) & 0x7FFFFFFF)
        return self._dataset[index]


def _seed(number: int) -> None:
    import random

    import numpy as np

    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


class Iterated:
    """An iterable, begun anew when it ends: of whole batches, or of samples that are put together ``size`` at a time.

    It goes on by its own ``state_dict`` where it has one, else by passing over what was taken.
    """

    def __init__(
        self, iterable: Iterable[Any], size: int, *, seed: int, collate: Collate | None, drop_last: bool
    ) -> None:
        self._iterable, self._size = iterable, size
        self._generators = _generators(iterable, seed)
        self._collate, self._drop_last = collate, drop_last
        self._stateful = all(callable(getattr(iterable, n, None)) for n in ("state_dict", "load_state_dict"))

    def batches(self, step: int, position: Position, read: Positions | None = None) -> Iterator[Fed]:  # noqa: ARG002
        """See ``Feed``."""
        start = position or {"epoch": 0, "taken": 0}
        epoch, passed = int(start["epoch"]), int(start["taken"])
        if self._stateful and "loader" in start:
            self._iterable.load_state_dict(_unpacked(start["loader"]))  # type: ignore[attr-defined]
        while True:
            taken = passed
            for batch in self._epoch(epoch, 0 if self._stateful and "loader" in start else passed):
                taken += 1
                yield Fed(batch, self._position(epoch, taken))
            if not taken:
                raise RunError("data: the iterable gives no batch" + (" (drop_last)" if self._drop_last else ""))
            epoch, passed, start = epoch + 1, 0, {}

    def once(self) -> Iterator[Mapping[str, Any]]:
        """One pass."""
        return self._epoch(0, 0)

    def _position(self, epoch: int, taken: int) -> dict[str, Any]:
        state = {"loader": _packed(self._iterable.state_dict())} if self._stateful else {}  # type: ignore[attr-defined]
        return {"epoch": epoch, "taken": taken, **state}

    def _epoch(self, epoch: int, passed: int) -> Iterator[Mapping[str, Any]]:
        for generator, first in self._generators:
            generator.manual_seed((first + epoch) & 0x7FFF_FFFF_FFFF_FFFF)
        set_epoch = getattr(self._iterable, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)
        for number, batch in enumerate(self._made()):
            if number >= passed:
                yield self._collate(batch) if self._collate is not None else batch

    def _made(self) -> Iterator[Any]:
        """Batches, of samples not yet put together."""
        if self._collate is None:
            yield from self._iterable
            return
        held: list[Any] = []
        for sample in self._iterable:
            held.append(sample)
            if len(held) == self._size:
                yield held
                held = []
        if held and not self._drop_last:
            yield held


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed of an epoch's order."""
    return ((seed << 20) + epoch) & 0x7FFF_FFFF_FFFF_FFFF


def _generators(iterable: Any, seed: int) -> list[tuple[torch.Generator, int]]:
    """What a DataLoader draws its order from, each with its first seed: its user's, or one that all ranks share."""
    if not isinstance(iterable, DataLoader):
        return []
    drawing = (iterable, iterable.sampler, getattr(iterable.batch_sampler, "sampler", None))
    holders: list[Any] = [holder for holder in drawing if hasattr(holder, "generator")]
    for holder in holders:
        holder.generator = holder.generator or torch.Generator().manual_seed(epoch_seed(seed, 0))
    return [(holder.generator, holder.generator.initial_seed()) for holder in holders]


def _packed(state: Any) -> str:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpacked(text: str) -> Any:
    return torch.load(io.BytesIO(base64.b64decode(text)), weights_only=True)  # runs no code from the file

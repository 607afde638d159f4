"""Values from a recording: what a tensor needs is done again, in order, and freed as soon as nothing needs it."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from plait.model.recording import Operation, Place, Recording

Key = TypeVar("Key")


def values(recording: Recording, places: Iterable[Place]) -> list[Tensor]:
    """The values of ``places`` after all operations; tensors of their own."""
    wanted = list(places)
    found: dict[int, Tensor] = {}

    def keep(index: int, tensor: Tensor) -> None:
        found[index] = tensor.clone(memory_format=torch.preserve_format)

    replay(recording, dict(enumerate(wanted)), keep)
    return [found[i] for i in range(len(wanted))]


def replay(recording: Recording, wanted: Mapping[Key, Place], sink: Callable[[Key, Tensor], None]) -> None:
    """Give each wanted tensor to ``sink`` as soon as its value is final, as a view of memory that is then let go.

    Random numbers that only other tensors need are drawn too, into memory that is freed at once: each tensor gets
    those that it would have got had all been made.
    """
    _Replay(recording, wanted, sink).run()


class _Replay(Generic[Key]):
    def __init__(self, recording: Recording, wanted: Mapping[Key, Place], sink: Callable[[Key, Tensor], None]) -> None:
        self._recording = recording
        self._sink = sink
        self._targets: dict[int, list[tuple[Key, Place]]] = {}
        for key, place in wanted.items():
            self._targets.setdefault(place.storage, []).append((key, place))
        self._memory: dict[int, torch.UntypedStorage] = {}
        self._needed, self._last = _slice(recording.operations, self._targets)
        self._final = _by_last_use(self._last)

    def run(self) -> None:
        """All that is needed, in order."""
        for storage in set(self._targets) - set(self._last):
            self._finish(storage)  # never written: given, or left as it was allocated
        if not self._needed:
            return
        draws = _Draws(self._recording)
        with draws, torch.no_grad():
            for number in range(max(self._needed) + 1):
                operation = self._recording.operations[number]
                if number in self._needed:
                    with draws.of(number, operation), _default_dtype(operation.default_dtype):
                        self._do(operation)
                elif operation.draw is not None:
                    with draws.of(number, operation), _default_dtype(operation.default_dtype):
                        self._spend(operation)
                for storage in self._final.get(number, ()):
                    self._finish(storage)

    def _do(self, operation: Operation) -> None:
        result = self._call(operation, self._tensor)
        for place, tensor in zip(operation.results, pytree.tree_leaves(result), strict=True):
            if place is not None and place.storage not in self._memory:
                self._memory[place.storage] = _as_placed(place, tensor, self._recording.nbytes(place.storage))

    def _spend(self, operation: Operation) -> None:
        self._call(operation, lambda p: torch.empty_strided(p.size, p.stride, dtype=p.dtype))

    def _call(self, operation: Operation, tensor: Callable[[Place], Tensor]) -> Any:
        leaves = [tensor(x) if isinstance(x, Place) else x for x in operation.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, operation.spec)
        return operation.function(*args, **kwargs)

    def _tensor(self, place: Place) -> Tensor:
        if place.storage not in self._memory:
            given = self._recording.given.get(place.storage)
            nbytes = self._recording.nbytes(place.storage)
            empty = torch.empty(nbytes, dtype=torch.uint8)
            self._memory[place.storage] = empty.untyped_storage()
            if given is not None:
                empty.copy_(torch.empty(0, dtype=torch.uint8).set_(given))
        whole = torch.empty(0, dtype=place.dtype)
        return whole.set_(self._memory[place.storage], place.offset, place.size, place.stride)

    def _finish(self, storage: int) -> None:
        for key, place in self._targets.get(storage, ()):
            self._sink(key, self._tensor(place))
        self._memory.pop(storage, None)


def _as_placed(place: Place, tensor: Tensor, nbytes: int) -> torch.UntypedStorage:
    """The memory of a result, laid out as it was when recorded."""
    if (tuple(tensor.stride()), tensor.storage_offset()) == (place.stride, place.offset):
        return tensor.untyped_storage()
    memory = torch.empty(nbytes, dtype=torch.uint8).untyped_storage()
    torch.empty(0, dtype=place.dtype).set_(memory, place.offset, place.size, place.stride).copy_(tensor)
    return memory


def _slice(operations: list[Operation], targets: Iterable[int]) -> tuple[set[int], dict[int, int]]:
    """(operations that ``targets`` depend on, storage → the last of these that uses it).

    An operation that draws into what others read is done whole: how much it draws may depend on values.
    """
    live = set(targets)
    needed: set[int] = set()
    last: dict[int, int] = {}
    draws = False
    for number in range(len(operations) - 1, -1, -1):
        operation = operations[number]
        draws_by_values = draws and operation.draw is not None and bool(operation.reads)
        if not (operation.writes & live or draws_by_values):
            continue
        needed.add(number)
        draws = draws or operation.draw is not None
        live = (live - operation.overwrites) | operation.reads
        for storage in operation.reads | operation.writes:
            last.setdefault(storage, number)
    return needed, last


def _by_last_use(last: Mapping[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for storage, number in last.items():
        found.setdefault(number, []).append(storage)
    return found


class _Draws(contextlib.AbstractContextManager["_Draws"]):
    """The recorded generators, in the states that they had when each operation drew; the real ones stay as they are."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        starts = {op.draw.start for op in recording.operations if op.draw is not None and type(op.draw.start) is int}
        self._asked = starts
        self._states: dict[int, Tensor] = {}
        self._current = [source.before for source in recording.sources]

    def __enter__(self) -> "_Draws":
        self._own = [source.generator.get_state() for source in self._recording.sources]
        return self

    def __exit__(self, *_: object) -> None:
        for source, state in zip(self._recording.sources, self._own, strict=True):
            source.generator.set_state(state)

    @contextlib.contextmanager
    def of(self, number: int, operation: Operation) -> Iterator[None]:
        """The operation's generator in the right state."""
        draw = operation.draw
        if draw is None:
            yield
            return
        start = self._current[draw.source] if draw.start is None else draw.start
        generator = self._recording.sources[draw.source].generator
        generator.set_state(self._states[start] if isinstance(start, int) else start)
        yield
        self._current[draw.source] = generator.get_state()
        if number in self._asked:
            self._states[number] = self._current[draw.source]


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    if dtype is before:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

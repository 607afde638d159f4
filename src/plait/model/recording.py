"""A recording of how a model's tensors get their values, made while the model is built without memory for them.

Every tensor made meanwhile is a fake one that claims to be on the CPU, so that the model's own code does what it
always does. What a program needs to know (``.item()``, a condition) is worked out on the spot.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from plait.errors import CaptureError

_aten = torch.ops.aten
_LIFTS = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.lift.default)
_READS = (_aten._local_scalar_dense.default, _aten.equal.default)
_RESIZES = ("resize_", "set_", "resize_as_", "resize_storage_bytes_")
_OVERWRITES = (
    "uniform_", "normal_", "zero_", "fill_", "copy_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor as a view of a numbered storage; strides and offset count elements."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def packed(self) -> bool:
        """Whether its elements lie one after the other in row-major order."""
        expected = 1
        for size, stride in zip(reversed(self.size), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        found = self.dtype.itemsize
        for size in self.size:
            found *= size
        return found


@dataclass(frozen=True, slots=True)
class Draw:
    """Where an operation takes its random numbers: a generator, in the state it was left in or another one.

    ``start`` is a state, or the number of the operation after which the generator was in it.
    """

    source: int
    start: Tensor | int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of an operator. Among ``leaves`` a Place stands for each tensor."""

    function: OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    results: tuple[Place | None, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    """Storages whose content it makes or changes."""
    overwrites: frozenset[int]
    """Those of ``writes`` of whose former content nothing is left."""
    draw: Draw | None
    default_dtype: torch.dtype


@dataclass
class Source:
    """A random generator of the program: its state when first used, and the operations that drew from it.

    Building draws no number. After each operation the generator is given a seed of its own, so that a program that
    seeds it or puts back a former state is noticed.
    """

    generator: torch.Generator
    before: Tensor
    marks: dict[int, int] = field(default_factory=dict)
    last: int | None = None
    """The operation that drew last."""

    @classmethod
    def of(cls, generator: torch.Generator) -> "Source":
        """A source not used yet."""
        return cls(generator, generator.get_state())

    def draw(self, index: int, operation: int, mark: int) -> Draw:
        """Note that ``operation`` draws, from where it then does."""
        found = self._start()
        self.generator.manual_seed(mark)
        self.marks[mark] = operation
        self.last = operation
        return Draw(index, found)

    def _start(self) -> Tensor | int | None:
        seed = self.generator.initial_seed()
        if seed not in self.marks:
            return self.generator.get_state()
        return None if self.marks[seed] == self.last else self.marks[seed]

    def restore(self) -> None:
        """The generator as it was before."""
        self.generator.set_state(self.before)


class Recording:
    """Operations in their order, and the storages that they make or are given."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.given: dict[int, torch.UntypedStorage] = {}
        """Contents that the program had before: storages of real tensors."""
        self.sources: list[Source] = []
        self._numbers: dict[int, int] = {}
        self._bytes: list[int] = []
        self._alive: list[torch.UntypedStorage] = []
        self._marks = count(secrets.randbits(60))

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "Recording":
        return self

    def nbytes(self, storage: int) -> int:
        """Bytes of a storage."""
        return self._bytes[storage]

    def place(self, fake: Tensor) -> Place:
        """Where a fake tensor's values are."""
        return Place(self._number(fake), tuple(fake.shape), fake.stride(), int(fake.storage_offset()), fake.dtype)

    def knows(self, fake: Tensor) -> bool:
        """Whether the tensor's storage is numbered."""
        return fake.untyped_storage()._cdata in self._numbers

    def give(self, fake: Tensor, real: Tensor) -> None:
        """The fake tensor stands for a real one."""
        self.given.setdefault(self._number(fake), real.untyped_storage())

    def add(self, function: OpOverload, given: Any, result: Any) -> None:
        """Note a call with the arguments ``given`` (a pair) and the result, all of fake tensors."""
        tensors, spec = pytree.tree_flatten(given)
        before = len(self._alive)
        leaves = tuple(self.place(x) if isinstance(x, Tensor) else x for x in tensors)
        results = tuple(self.place(x) if isinstance(x, Tensor) else None for x in pytree.tree_leaves(result))
        mutated = _mutated(function, given)
        made = {p.storage for p in results if p is not None and p.storage >= before}
        changed = {self.place(t).storage for t in mutated}
        gone = made | {p.storage for p in map(self.place, mutated) if self._is_overwritten(function, p)}
        read = {x.storage for x in leaves[1:] if isinstance(x, Place)} if gone - made else {
            x.storage for x in leaves if isinstance(x, Place)
        }  # fmt: skip
        self.operations.append(
            Operation(
                function, leaves, spec, results, frozenset(read), frozenset(made | changed), frozenset(gone - read),
                self._draw(function, given), torch.get_default_dtype(),
            )
        )  # fmt: skip

    def _is_overwritten(self, function: OpOverload, place: Place) -> bool:
        whole = place.packed and place.nbytes == self._bytes[place.storage]
        return whole and function.overloadpacket.__name__ in _OVERWRITES

    def _draw(self, function: OpOverload, given: Any) -> Draw | None:
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return None
        found = next((x for x in pytree.tree_leaves(given) if isinstance(x, torch.Generator)), torch.default_generator)
        index = next((i for i, s in enumerate(self.sources) if s.generator is found), len(self.sources))
        if index == len(self.sources):
            self.sources.append(Source.of(found))
        return self.sources[index].draw(index, len(self.operations), next(self._marks))

    def _number(self, fake: Tensor) -> int:
        storage = fake.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self._alive)
            self._alive.append(storage)  # while it lives no other storage gets its address
            self._bytes.append(storage.nbytes())
        return self._numbers[storage._cdata]

    def restore(self) -> None:
        """Put the generators back as they were; no operation draws any more."""
        for source in self.sources:
            source.restore()

    def finish(self) -> None:
        """Nothing is added any more."""
        self._alive, self._numbers = [], {}


def _mutated(function: OpOverload, given: Any) -> list[Tensor]:
    args, kwargs = given
    found: list[Tensor] = []
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            found += [x for x in pytree.tree_leaves(value) if isinstance(x, Tensor)]
    return found


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, every tensor operation is noted and run on fake tensors instead of real ones."""

    def __init__(self, fakes: FakeTensorMode, work_out: Callable[[Recording, Iterable[Place]], list[Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._fakes = fakes
        self._work_out = work_out

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Note and run one operation."""
        given = pytree.tree_map(self._fake, (args, kwargs or {}))
        if func in _LIFTS:
            return given[0][0]
        if func in _READS:
            return self._now(func, given)
        if func.overloadpacket.__name__ in _RESIZES:
            raise CaptureError(f"plait.deferred: {func} gives a tensor other memory, which cannot be repeated later")
        try:
            result = func(*given[0], **given[1])
        except (DataDependentOutputException, DynamicOutputShapeException):
            return pytree.tree_map(self._fake, self._now(func, given))
        self.recording.add(func, given, result)
        return result

    def _fake(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        if leaf.is_meta:
            raise CaptureError("plait.deferred: the model puts tensors on the meta device itself; let it not do so")
        fake = self._fakes.from_tensor(leaf)
        self.recording.give(fake, leaf)
        return fake

    def changed(self, tensor: Tensor) -> Place | None:
        """Where the values of a real tensor are, if operations changed it."""
        place = self.recording.place(self._fake(tensor))
        changed = any(place.storage in operation.writes for operation in self.recording.operations)
        return place if changed else None

    def _now(self, func: OpOverload, given: Any) -> Any:
        """The result of an operation whose result's form or the program's course depends on values."""
        if _mutated(func, given) or torch.Tag.nondeterministic_seeded in func.tags:
            raise CaptureError(f"plait.deferred: {func} depends on values in a way that cannot be repeated later")
        leaves, spec = pytree.tree_flatten(given)
        places = [self.recording.place(x) for x in leaves if isinstance(x, Tensor)]
        with _disable_current_modes():
            real = iter(self._work_out(self.recording, places))
            args, kwargs = pytree.tree_unflatten([next(real) if isinstance(x, Tensor) else x for x in leaves], spec)
            return func(*args, **kwargs)

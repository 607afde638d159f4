"""Models built without memory for their weights, of which any tensor can be made later, by itself and exactly."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from plait.errors import CaptureError
from plait.model.recording import Place, Recorder, Recording
from plait.model.replay import replay, values

Key = TypeVar("Key")
_ATTRIBUTE = "_plait_deferred"
_OF_FAKES = frozenset(("fake_device", "fake_mode", "constant", "real_tensor", "pytype", "dispatch_keys"))


@dataclass(frozen=True)
class Deferred:
    """How the tensors of a model get their values."""

    recording: Recording
    places: Mapping[str, Place]
    """Name of a parameter or buffer, each of its names, → where its values are."""

    def __deepcopy__(self, memo: Mapping[int, Any]) -> "Deferred":
        return self


def deferred(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model that ``factory`` builds, on the meta device: its parameters and buffers take no memory.

    How they get their values, random numbers included, is recorded, so that the engine makes on each rank only
    those of its own stages, exactly as an ordinary construction from the same seed would have made them. Seed
    before or inside ``factory``, which builds on the CPU. The random generators are left as they were.

    Raises CaptureError, naming the parameter where there is one, for what cannot be repeated later. What else the
    model's code raises where a tensor has no values, as in reading weights from a file, comes through: leave such
    reading out, and give the engine ``weights``.
    """
    with _conversions(), FakeTensorMode(allow_non_fake_inputs=True) as fakes, Recorder(fakes, values) as recorder:
        try:
            model = factory()
        finally:
            recorder.recording.restore()
    if not isinstance(model, nn.Module):
        raise CaptureError(f"plait.deferred: the factory gives a {type(model).__name__}, no nn.Module")
    places = _to_meta(model, recorder)
    _make_others(model, recorder.recording)
    recorder.recording.finish()
    setattr(model, _ATTRIBUTE, Deferred(recorder.recording, places))
    return model


@contextlib.contextmanager
def _conversions() -> Iterator[None]:
    """Lets ``module.to(...)`` and its like convert fake parameters in place; torch would swap them, and fail."""
    original = nn.Module._apply

    def convert(module: nn.Module, function: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        for child in module.children() if recurse else ():
            child._apply(function)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.data = function(parameter)
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer if buffer is None else function(buffer)
        return module

    nn.Module._apply = convert  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def deferred_values(model: nn.Module, wanted: Mapping[str, Key], sink: Callable[[Key, Tensor], None]) -> None:
    """Give ``sink`` the initial values of the parameters and buffers named in ``wanted``, one after the other.

    Each comes with what ``wanted`` has under its name, as a view of memory that is let go afterwards. Raises
    CaptureError naming one whose values are not known: its model was put on the meta device in another way.
    """
    rest = dict(wanted)
    for path, module in model.named_modules():
        found = module.__dict__.get(_ATTRIBUTE)
        if isinstance(found, Deferred):
            prefix = f"{path}." if path else ""
            own = {prefix + name: place for name, place in found.places.items() if prefix + name in rest}
            replay(found.recording, {rest.pop(name): place for name, place in own.items()}, sink)
    if rest:
        raise CaptureError(
            f"{next(iter(rest))} is on the meta device and has no values; build the model by plait.deferred(factory) "
            "to have its random initialisation, or give weights, the file or folder to read them from"
        )


def on_meta(tensor: Tensor) -> Tensor:
    """A tensor of the same form without memory; a parameter stays one, with the attributes that it was given."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return like_parameter(tensor, made)


def like_parameter(original: Tensor, made: Tensor) -> Tensor:
    """``made`` as a parameter where ``original`` is one, with the attributes that the model's code gave it."""
    if not isinstance(original, nn.Parameter):
        return made
    parameter = nn.Parameter(made, original.requires_grad)
    parameter.__dict__.update({k: v for k, v in original.__dict__.items() if k not in _OF_FAKES})
    return parameter


def _to_meta(model: nn.Module, recorder: Recorder) -> dict[str, Place]:
    """Put what was recorded on the meta device; a tensor with several names stays one."""
    places: dict[str, Place] = {}
    moved: dict[int, tuple[Tensor, Place | None]] = {}
    first: dict[int, str] = {}
    for name, store, leaf, tensor in list(_stored(model)):
        if id(tensor) not in moved:
            place = _place(name, tensor, recorder)
            if place is not None and place.storage in first and isinstance(tensor, nn.Parameter):
                raise CaptureError(
                    f"{name} and {first[place.storage]} are two parameters that share memory; let them be one object"
                )
            if place is not None and isinstance(tensor, nn.Parameter):
                first[place.storage] = name
            moved[id(tensor)] = (tensor if place is None else on_meta(tensor), place)
        store[leaf], known = moved[id(tensor)]
        if known is not None:
            places[name] = known
    return places


def _stored(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str, Tensor]]:
    """(name, the module's store, name in it, tensor) of every parameter and buffer, under each of its names."""
    for path, module in model.named_modules(remove_duplicate=False):
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for leaf, tensor in store.items():
                if tensor is not None:
                    yield f"{path}.{leaf}" if path else leaf, store, leaf, tensor


def _place(name: str, tensor: Tensor, recorder: Recorder) -> Place | None:
    """Where the values are; None for a tensor that existed before and was not changed."""
    if tensor.is_meta:
        raise CaptureError(f"{name}: the factory puts it on the meta device itself; let it not do so")
    if not isinstance(tensor, FakeTensor):
        return recorder.changed(tensor)
    if tensor.device.type != "cpu":
        raise CaptureError(f"{name}: the factory puts it on {tensor.device}; build on the CPU, the engine moves it")
    return recorder.recording.place(tensor)


def _make_others(model: nn.Module, recording: Recording) -> None:
    """Give tensors that modules keep as plain attributes their values: they are small, and no store names them."""
    found: dict[int, Tensor] = {}

    def note(leaf: Any) -> Any:
        if isinstance(leaf, FakeTensor):
            found[id(leaf)] = leaf
        return leaf

    attributes = [(module, name, value) for module in model.modules() for name, value in _plain(module)]
    for _, _, value in attributes:
        pytree.tree_map(note, value)
    made = dict(zip(found, values(recording, [recording.place(t) for t in found.values()]), strict=True))
    for module, name, value in attributes:
        if any(id(leaf) in made for leaf in pytree.tree_leaves(value)):
            module.__dict__[name] = pytree.tree_map(lambda leaf: made.get(id(leaf), leaf), value)


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in list(module.__dict__.items()):
        if isinstance(value, (FakeTensor, list, tuple, dict)) and name not in ("_parameters", "_buffers", "_modules"):
            yield name, value

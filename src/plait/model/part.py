"""A part described by hand as a call: of a submodule, or of a function that is shown what it uses of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.by_hand import Plain


@dataclass(frozen=True)
class Bound:
    """What a PART node of a tape calls. ``modules`` are the paths that it uses, outermost alone."""

    part: Plain
    model: nn.Module
    modules: tuple[str, ...]
    tensors: tuple[str, ...]
    """Parameters and buffers that it uses by themselves."""


def bind(part: Plain, model: nn.Module) -> Bound:
    """``part`` with what it uses of ``model``; raises CaptureError where the model has no such thing."""
    modules: list[str] = []
    tensors: list[str] = []
    for path in part.uses:
        found = _at(part, model, path)
        (modules if isinstance(found, nn.Module) else tensors).append(path)
        if isinstance(part.run, str) and not isinstance(found, nn.Module):
            raise CaptureError(f"{part.title}: {path} is no submodule but a tensor; use it in a function")
    outer = tuple(p for p in modules if not any(p.startswith(f"{o}.") for o in modules))
    return Bound(part, model, outer, tuple(t for t in tensors if not any(t.startswith(f"{o}.") for o in outer)))


def _at(part: Plain, model: nn.Module, path: str) -> nn.Module | Tensor:
    here: Any = model
    walked: list[str] = []
    for name in path.split("."):
        named: dict[str, Any] = {**here._modules, **here._parameters, **here._buffers} if _is_module(here) else {}
        found = {n: x for n, x in named.items() if x is not None}
        if name not in found:
            what = "submodule" if part.run == path else "submodule, parameter or buffer"
            raise CaptureError(
                f"{part.title}: the model has no {what} {path!r}; {'.'.join(walked) or type(model).__name__} has "
                f"{', '.join(found) or 'none'}"
            )
        here = found[name]
        walked.append(name)
    found_here: nn.Module | Tensor = here
    return found_here


def _is_module(value: object) -> bool:
    return isinstance(value, nn.Module)


class CallPart:
    """Calls a part; the result is the list of the tensors that it writes.

    Its modules and tensors are those under ``root``, a stage or the whole model.
    """

    __slots__ = ("_bound", "_root", "_run", "_shown")

    def __init__(self, bound: Bound, root: nn.Module) -> None:
        run = bound.part.run
        self._bound, self._root = bound, root
        self._shown = None if isinstance(run, str) else Shown(bound, root)
        self._run: Any = inside(root, run) if isinstance(run, str) else run

    def __call__(self, given: Sequence[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its tensors for the values that it reads; ``tensors`` are those that it uses, as they are now."""
        part = self._bound.part
        named = list(zip(part.arguments, given, strict=True))
        args = [tensor for (keyword, _), tensor in named if keyword is None]
        kwargs = {keyword: tensor for (keyword, _), tensor in named if keyword is not None}
        if self._shown is not None:
            args.insert(0, self._shown.now(tensors))  # type: ignore[arg-type]
        return written(part, self._run(*args, **kwargs))


def inside(root: nn.Module, path: str) -> nn.Module:
    """The submodule at ``path``, also where its name is one of the root's own attributes."""
    for name in path.split(".") if path else ():
        root = root._modules[name]  # type: ignore[assignment]
    return root


class Shown:
    """The model with no more of it than a part uses: its classes, methods and plain attributes, and those modules.

    What the part doesn't name is missing, so that it can't be used by mistake: on another rank it has no weights.
    """

    def __init__(self, bound: Bound, root: nn.Module) -> None:
        self._bound, self._root = bound, root
        self._shells: dict[str, nn.Module] = {"": _bare(bound.model)}
        for path in bound.modules:
            self._shell(_parent(path))._modules[_leaf(path)] = inside(root, path)

    def now(self, tensors: Sequence[Tensor]) -> nn.Module:
        """It, with the tensors that the root holds now, in the root's mode."""
        for path, tensor in zip(self._bound.tensors, tensors, strict=True):
            owner = self._shell(_parent(path))
            store: dict[str, Any] = owner._parameters if isinstance(tensor, nn.Parameter) else owner._buffers
            store[_leaf(path)] = tensor
        for shell in self._shells.values():
            shell.training = self._root.training
        return self._shells[""]

    def _shell(self, path: str) -> nn.Module:
        if path not in self._shells:
            made = _bare(inside(self._bound.model, path))
            self._shell(_parent(path))._modules[_leaf(path)] = made
            self._shells[path] = made
        return self._shells[path]


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _bare(module: nn.Module) -> nn.Module:
    made: nn.Module = module.__class__.__new__(module.__class__)
    made.__dict__.update(module.__dict__)
    listed = isinstance(module, (nn.ModuleList, nn.Sequential))  # found by their place: it must stay
    made.__dict__["_modules"] = dict.fromkeys(module._modules) if listed else {}
    made.__dict__["_parameters"], made.__dict__["_buffers"] = {}, {}
    return made


def written(part: Plain, result: Any) -> list[Tensor]:
    """The tensors of ``result`` that ``part`` writes, in order; raises CaptureError where one is missing."""
    found = [_field(part, result, value, field) for value, field in part.results]
    for (value, _), tensor in zip(part.results, found, strict=True):
        if not isinstance(tensor, Tensor):
            raise CaptureError(
                f"{part.title}: writes {value}: its result there is a {type(tensor).__name__}, no tensor"
            )
    return found


def _field(part: Plain, result: Any, value: str, field: str | int) -> Any:
    if isinstance(field, str):
        found = result.get(field) if isinstance(result, Mapping) else getattr(result, field, None)
        if found is None:
            known = ", ".join(map(str, result)) if isinstance(result, Mapping) else f"a {type(result).__name__}"
            raise CaptureError(f"{part.title}: writes {value}: its result has no field {field!r}; it is {known}")
        return found
    if isinstance(result, Tensor) and field == 0:
        if len(part.results) > 1:
            raise CaptureError(f"{part.title}: writes {', '.join(part.writes)}, but gives one tensor")
        return result
    if not isinstance(result, (tuple, list)):
        hint = f"; say which field each value is: writes={{{value!r}: ...}}" if not isinstance(result, Tensor) else ""
        raise CaptureError(f"{part.title}: writes {', '.join(part.writes)}, but gives a {type(result).__name__}{hint}")
    if field >= len(result):
        raise CaptureError(f"{part.title}: writes {', '.join(part.writes)}, but gives {len(result)} values")
    return result[field]

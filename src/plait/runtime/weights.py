"""Weights in and out of safetensors files under the model's own names; each rank reads only its own tensors."""

import contextlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from plait.errors import CheckpointError, FileError
from plait.files import read_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters registered inside take no memory; buffers stay real, for no file holds the non-persistent ones."""
    original = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        original(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


def build_empty(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model without memory for its parameters, to be filled from a file stage by stage."""
    with _parameters_on_meta():
        return factory()


def materialise(model: nn.Module, names: Collection[str], canonical: Mapping[str, str], device: torch.device) -> None:
    """Give the parameters ``names`` that are on the meta device memory on ``device``; tied ones stay one object."""
    made: dict[int, nn.Parameter] = {}
    for path, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):  # noqa: SLF001
            full = f"{path}.{name}" if path else name
            if parameter is not None and parameter.is_meta and canonical.get(full, full) in names:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]  # noqa: SLF001


def tensors_in(folder: str | Path) -> dict[str, Path]:
    """Tensor name → the file of ``folder`` that holds it; raises FileError."""
    root = Path(folder)
    if (root / INDEX).exists():
        try:
            listed = json.loads(read_text(root / INDEX))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{root / INDEX}: not an index of safetensors files: {error}") from None
        return {name: root / file for name, file in listed.items()}
    files = sorted(root.glob("*.safetensors"))
    if not files:
        raise FileError(f"{root}: no {SINGLE} or {INDEX} in this folder")
    found: dict[str, Path] = {}
    for file in files:
        with _opened(file) as opened:
            found |= dict.fromkeys(opened.keys(), file)
    return found


def load(folder: str | Path, wanted: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Fill ``wanted`` (name → tensor) in place from a folder.

    ``aliases`` maps each other name of a tied parameter to the name in ``wanted``. Raises CheckpointError naming
    tensors that are missing or of another shape.
    """
    where = tensors_in(folder)
    names = {name: _name_in(name, where, aliases) for name in wanted}
    missing = sorted(name for name, found in names.items() if found is None)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise CheckpointError(f"{folder}: lacks {', '.join(missing[:3])}{more}: is it this model's?")
    by_file: dict[Path, list[str]] = {}
    for name, found in names.items():
        by_file.setdefault(where[str(found)], []).append(name)
    for file, inside in by_file.items():
        with _opened(file) as opened:
            for name in inside:
                _fill(file, name, wanted[name], opened.get_tensor(str(names[name])))


def _name_in(name: str, where: Mapping[str, Path], aliases: Mapping[str, str]) -> str | None:
    others = (alias for alias, own in aliases.items() if own == name)
    return next((n for n in (name, *others) if n in where), None)


def _fill(file: Path, name: str, into: Tensor, found: Tensor) -> None:
    if found.shape != into.shape:
        raise CheckpointError(f"{file}: {name} has shape {tuple(found.shape)}, the model's has {tuple(into.shape)}")
    with torch.no_grad():
        into.copy_(found)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise FileError(f"{file}: cannot read: {error}") from None

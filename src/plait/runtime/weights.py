"""Weights in and out of safetensors files under the model's own names; each rank reads only its own tensors."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plait.errors import CheckpointError, FileError
from plait.files import read_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


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

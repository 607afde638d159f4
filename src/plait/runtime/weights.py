"""Weights in and out of safetensors files under the model's own names; each rank reads only its own tensors."""

import contextlib
import difflib
import json
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plait.errors import CheckpointError, FileError
from plait.files import read_text

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHOWN = 3
"""Names that a message lists before it counts the rest."""


def tensors_in(path: str | Path) -> dict[str, Path]:
    """Tensor name → the file that holds it, in a safetensors file, an index of several, or a folder.

    Raises FileError.
    """
    root = Path(path)
    if not root.exists():
        raise FileError(f"{root}: there is no such file or folder of weights")
    if root.is_dir():
        return _in_folder(root)
    if root.suffix == ".json":
        return _listed(root)
    with _opened(root) as opened:
        return dict.fromkeys(opened.keys(), root)


def _in_folder(root: Path) -> dict[str, Path]:
    if (root / INDEX).exists():
        return _listed(root / INDEX)
    files = [root / SINGLE] if (root / SINGLE).exists() else sorted(root.glob("*.safetensors"))
    if not files:
        raise FileError(f"{root}: no {SINGLE} or {INDEX} in this folder")
    found: dict[str, Path] = {}
    for file in files:
        with _opened(file) as opened:
            found |= dict.fromkeys(opened.keys(), file)
    return found


def _listed(index: Path) -> dict[str, Path]:
    try:
        listed = json.loads(read_text(index))["weight_map"]
        return {str(name): index.parent / file for name, file in listed.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{index}: not an index of safetensors files: {error}") from None


def load(path: str | Path, wanted: Mapping[str, Tensor], aliases: Mapping[str, str], *, tell: bool = False) -> None:
    """Fill ``wanted`` (name → tensor) in place from a file or folder, of which nothing else is read.

    ``aliases`` maps every name of the model's tensors to the one that ``wanted`` has; ``tell``: warn of tensors that
    the model does not have. Raises CheckpointError naming tensors that are missing, or of another shape or kind.
    """
    where = tensors_in(path)
    others: dict[str, list[str]] = {}
    for alias, own in aliases.items():
        others.setdefault(own, []).append(alias)
    names = {name: next((n for n in (name, *others.get(name, ())) if n in where), None) for name in wanted}
    missing = sorted(name for name, found in names.items() if found is None)
    unknown = sorted(name for name in where if name not in aliases and name not in wanted)
    if missing:
        raise CheckpointError(f"{path}: lacks {some(missing)}{_near(missing, unknown)}")
    if unknown and tell:
        warnings.warn(f"{path}: the model has no {some(unknown)}, which is not read", stacklevel=2)
    by_file: dict[Path, list[str]] = {}
    for name, found in names.items():
        by_file.setdefault(where[str(found)], []).append(name)
    for file, inside in by_file.items():
        with _opened(file) as opened:
            for name in inside:
                _fill(file, name, wanted[name], _read(opened, file, str(names[name])))


def some(names: Sequence[str]) -> str:
    """The first few of ``names`` and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _near(missing: Sequence[str], unknown: Collection[str]) -> str:
    """What may have been meant, or what the file has that the model does not."""
    if not unknown:
        return ": is it this model's?"
    near = difflib.get_close_matches(missing[0], list(unknown), n=SHOWN, cutoff=0.6)
    if near:
        return f"; near {missing[0]} it has {some(near)}, which the model lacks"
    return f"; it has {some(sorted(unknown))}, which the model lacks: is it this model's?"


def _read(opened: Any, file: Path, name: str) -> Tensor:
    try:
        found: Tensor = opened.get_tensor(name)
    except SafetensorError as error:
        raise FileError(f"{file}: {name}: cannot read: {error}") from None
    return found


def _fill(file: Path, name: str, into: Tensor, found: Tensor) -> None:
    if found.shape != into.shape:
        raise CheckpointError(f"{file}: {name} has shape {tuple(found.shape)}, the model's has {tuple(into.shape)}")
    if found.dtype != into.dtype and not (found.is_floating_point() and into.is_floating_point()):
        raise CheckpointError(
            f"{file}: {name} has dtype {found.dtype}, the model's has {into.dtype}; only floating-point numbers are "
            "converted"
        )
    with torch.no_grad():
        into.copy_(found)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise FileError(f"{file}: cannot read: {error}") from None

"""Checkpoints by torch.distributed.checkpoint, under the parameters' own names: any plan can go on from any other's.

Tensors are stored as safetensors, the rest as JSON: loading runs no code from the file. A checkpoint is written
beside its place and renamed when it is whole, so a crash leaves the former one.
"""

import contextlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.optim import Optimizer

from plait.errors import CheckpointError, RunError
from plait.files import read_text, write_text
from plait.runtime.reasons import reason_of

FORMAT = "plait-checkpoint/1"
STATE = "state.json"
_NAME = re.compile(r"step-(\d+)")
_SLOT = "optimizer/"


def latest(folder: str | Path) -> Path | None:
    """The newest whole checkpoint in ``folder``."""
    root = Path(folder)
    found = [p for p in root.iterdir() if _NAME.fullmatch(p.name) and (p / STATE).exists()] if root.is_dir() else []
    return max(found, key=lambda p: int(p.name.partition("-")[2]), default=None)


def save(folder: str | Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], keep: int) -> Path:
    """Write ``folder/step-N`` (all ranks take part) and remove all but the ``keep`` newest; gives its path."""
    root, first = Path(folder), not dist.is_initialized() or dist.get_rank() == 0
    target, temporary = root / f"step-{step}", root / f".step-{step}.writing"
    if first:
        _prepare(temporary)
    _barrier()
    with _quietly():
        writer = HuggingFaceStorageWriter(str(temporary), save_distributed=True)
        state_dict_saver.save(dict(tensors), storage_writer=writer)
    if first:
        write_text(temporary / STATE, json.dumps({"format": FORMAT, "step": step, **state}, indent=1))
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        _prune(root, keep)
    _barrier()
    return target


def _prepare(temporary: Path) -> None:
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"{temporary}: cannot write a checkpoint: {error.strerror or error}") from None


def _prune(root: Path, keep: int) -> None:
    whole = sorted((p for p in root.iterdir() if _NAME.fullmatch(p.name)), key=lambda p: int(p.name[5:]))
    for old in whole[:-keep] if keep else []:
        shutil.rmtree(old, ignore_errors=True)


def read_state(path: str | Path) -> dict[str, Any]:
    """The JSON part of a checkpoint; raises CheckpointError or FileError."""
    try:
        state = json.loads(read_text(Path(path) / STATE))
    except ValueError as error:
        raise CheckpointError(f"{path}: {STATE} is not readable: {error}") from None
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(f"{path}: {STATE}: format: expected {FORMAT!r}")
    return state


def load(path: str | Path, parameters: Mapping[str, Tensor], optimizer: Optimizer | None) -> None:
    """Fill parameters (and buffers) in place and the optimizer's state of these parameters."""
    reader = HuggingFaceStorageReader(str(path))
    stored: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    missing = sorted(name for name in parameters if name not in stored)
    if missing:
        raise CheckpointError(f"{path}: lacks {missing[0]} ({len(missing)} in all): is it another model's?")
    for name, tensor in parameters.items():
        if tuple(stored[name].size) != tuple(tensor.shape):
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(stored[name].size)}, the model's has {tuple(tensor.shape)}"
            )
    slots = _slots(stored, parameters, optimizer)
    wanted = {n: t.detach() for n, t in parameters.items()} | {n: t for n, (_, _, t) in slots.items()}
    with _quietly():
        state_dict_loader.load(dict(wanted), storage_reader=HuggingFaceStorageReader(str(path)))
    if optimizer is not None:
        for parameter, slot, tensor in slots.values():
            optimizer.state[parameter][slot] = tensor


def _slots(
    stored: Mapping[str, Any], parameters: Mapping[str, Tensor], optimizer: Optimizer | None
) -> dict[str, tuple[Tensor, str, Tensor]]:
    """Stored name → (parameter, slot, empty tensor) for the optimizer state that these parameters need."""
    found: dict[str, tuple[Tensor, str, Tensor]] = {}
    if optimizer is None:
        return found
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, meta in stored.items():
        if name.startswith(_SLOT):
            slot, _, parameter_name = name.removeprefix(_SLOT).partition("/")
            parameter = parameters.get(parameter_name)
            if parameter is not None and id(parameter) in own:
                device = torch.device("cpu") if not tuple(meta.size) else parameter.device
                empty = torch.empty(tuple(meta.size), dtype=meta.properties.dtype, device=device)
                found[name] = (parameter, slot, empty)
    return found


def optimizer_tensors(optimizer: Optimizer | None, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's state as tensors named ``optimizer/slot/parameter``."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        for slot, value in (optimizer.state.get(parameter, {}) if optimizer else {}).items():
            if value is not None:
                found[f"{_SLOT}{slot}/{name}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    return found


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warning that there is only one process: a plan of one rank needs no group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _barrier() -> None:
    if dist.is_initialized():
        try:
            dist.barrier()
        except RuntimeError as error:
            raise RunError(
                f"rank {dist.get_rank()} waited for every rank to write its part of the checkpoint, and one of them "
                f"did not: {reason_of(error)}"
            ) from None

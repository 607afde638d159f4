"""What an optimizer's groups are set to (learning rates, decay, ...) and where the scheduler stands, as JSON."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from plait.errors import CheckpointError, RunError

Settings = dict[str, Any]


def settings_of(optimizer: Optimizer | None, scheduler: LRScheduler | None) -> Settings | None:
    """The options of each group and the scheduler's state; None without an optimizer."""
    if optimizer is None:
        return None
    groups = [plain({k: v for k, v in g.items() if k not in ("params", "param_names")}) for g in optimizer.param_groups]
    return {"groups": groups, "scheduler": plain(scheduler.state_dict()) if scheduler else None}


def gathered(own: Settings | None, *, alone: bool) -> list[Settings | None]:
    """The settings of every rank; all must call it."""
    if alone:
        return [own]
    found: list[Settings | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def check_alike(settings: list[Settings | None]) -> None:
    """Raise RunError unless all ranks that train anything have the same groups."""
    having = [(rank, s["groups"]) for rank, s in enumerate(settings) if s is not None]
    for rank, groups in having[1:]:
        first, expected = having[0]
        if len(groups) != len(expected):
            raise RunError(
                f"optimizer: rank {first} has {len(expected)} groups of parameters, rank {rank} has {len(groups)}; "
                "make the same on every rank, as plait.parameter_groups does, empty where a rank holds none of a group"
            )
        for index, (one, other) in enumerate(zip(expected, groups, strict=True)):
            if one != other:
                raise RunError(
                    f"optimizer: group {index} has {one} on rank {first} and {other} on rank {rank}; "
                    "plait.parameter_groups makes the same groups on every rank"
                )


def restore(settings: Mapping[str, Any], optimizer: Optimizer, scheduler: LRScheduler | None) -> None:
    """Take up what ``settings_of`` gave; raises CheckpointError where the groups are others."""
    groups, stored = optimizer.param_groups, settings["groups"]
    if len(groups) != len(stored):
        raise CheckpointError(
            f"the checkpoint has {len(stored)} groups of parameters, the optimizer {len(groups)}; give the optimizer "
            "as before"
        )
    if scheduler is not None and settings["scheduler"]:
        scheduler.load_state_dict(settings["scheduler"])
    for group, options in zip(groups, stored, strict=True):
        for name, value in options.items():
            group[name] = tuple(value) if isinstance(group.get(name), tuple) else value


def plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold of ``state``. The rest (functions, a Counter of milestones) is given anew by the user."""
    return {name: _plain(value) for name, value in state.items() if _is_plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    if isinstance(value, Mapping):
        return plain(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    if isinstance(value, Mapping):
        return all(isinstance(name, str) for name in value)
    if isinstance(value, Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, (bool, int, float, str))

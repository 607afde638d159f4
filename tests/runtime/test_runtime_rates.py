"""Learning rates go on after a checkpoint as if there had been none, whichever scheduler makes them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from plait.errors import CheckpointError, RunError
from plait.runtime.groups import NamedParameters
from plait.runtime.optimize import Outcome, Update
from plait.runtime.rates import check_alike

SCHEDULERS: dict[str, Callable[[Optimizer], LRScheduler]] = {
    "steps": lambda o: lr_scheduler.StepLR(o, 2, gamma=0.5),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], gamma=0.1),
    "function": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=[1.0, 2.0], total_steps=10),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.MultiStepLR(o, [1, 2])], milestones=[3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


def update_of(make: Callable[[Optimizer], LRScheduler] | None, groups: int = 2) -> Update:
    found = {f"p{i}": nn.Parameter(torch.ones(2)) for i in range(groups)}
    optimizer = torch.optim.AdamW([{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(found.values())])
    scheduler = make(optimizer) if make else None
    return Update(optimizer, scheduler, found, frozenset(found), None, torch.device("cpu"), True, 10.0)


def after(update: Update, steps: int) -> list[list[tuple[float, Any]]]:
    """Learning rate and betas of each group in each of the next steps."""
    found = []
    for _ in range(steps):
        assert update.optimizer is not None
        found.append([(group["lr"], group["betas"]) for group in update.optimizer.param_groups])
        for parameter in update.parameters.values():
            parameter.grad = torch.ones_like(parameter)
        update.step(Outcome(1.0, 1.0, True))
    return found


@pytest.mark.parametrize("name", SCHEDULERS)
def test_rates_go_on_after_a_checkpoint(name: str) -> None:
    whole = after(update_of(SCHEDULERS[name]), 8)
    first = update_of(SCHEDULERS[name])
    after(first, 4)
    stored = json.loads(json.dumps(first.settings_of_all()))
    second = update_of(SCHEDULERS[name])
    second.restore(stored)
    assert after(second, 4) == whole[4:]
    assert whole[4:] != whole[:4]


def test_a_checkpoint_with_other_groups_is_refused() -> None:
    stored = update_of(None, groups=1).settings_of_all()
    with pytest.raises(CheckpointError, match="has 1 groups of parameters, the optimizer 2"):
        update_of(None).restore(stored)


def test_ranks_must_have_the_same_groups() -> None:
    one = {"groups": [{"lr": 0.1}, {"lr": 0.2}], "scheduler": None}
    check_alike([None, one, one])
    with pytest.raises(RunError, match=r"rank 1 has 2 groups .* rank 2 has 1"):
        check_alike([None, one, {"groups": [{"lr": 0.1}]}])
    with pytest.raises(RunError, match=r"group 1 has {'lr': 0.2} on rank 0 and {'lr': 0.3} on rank 1"):
        check_alike([one, {"groups": [{"lr": 0.1}, {"lr": 0.3}]}])


def test_named_parameters_are_what_an_optimizer_takes() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD(NamedParameters([("w", weight)], {"w": frozenset({"b"})}), lr=0.1)
    assert optimizer.param_groups[0]["params"] == [weight]

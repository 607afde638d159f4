"""A job's optimizer and learning-rate schedule: by name, by the user's own function, in groups."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from plait.errors import FileError
from plait.job.job import Job
from plait.job.rates import check_update, scheduler_of
from plait.job.update import optimizer_of
from plait.model.capture import capture
from plait.runtime.groups import NamedParameters

MINE = """
import torch

def optimizer(parameters, *, lr):
    made = torch.optim.SGD(parameters, lr=lr)
    made.mine = True
    return made

def nothing(parameters):
    return None

def falling(optimizer, *, steps, power=1.0):
    return torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=steps, power=power)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def job(folder: Path, **fields: Any) -> Job:
    given = {"model": {"factory": "m:f"}, "data": {"factory": "m:f"}, "global_batch": 4, "steps": 10, "cluster": "c"}
    made = Job.from_data({"format": "plait-job/1"} | given | fields, "job.yaml")
    made.save(folder / "job.yaml")
    return Job.load(folder / "job.yaml")


def params() -> NamedParameters:
    branches = {"a.weight": frozenset({"a"}), "a.bias": frozenset({"a"}), "b.weight": frozenset({"b"})}
    return NamedParameters([(name, nn.Parameter(torch.zeros(2, 2))) for name in branches], branches)


def rates(made: Job, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    make = scheduler_of(made)
    assert make is not None
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_groups_and_no_decay_give_each_parameter_its_options(tmp_path: Path) -> None:
    rule = {"branches": ["a"], "options": {"lr": 0.5}}
    options = {"lr": 0.1, "weight_decay": 0.2}
    made = optimizer_of(job(tmp_path, optimizer={"options": options, "groups": [rule], "no_decay": ["*.bias"]}))
    groups = made(params()).param_groups
    assert [(len(g["params"]), g["lr"], g["weight_decay"]) for g in groups] == [
        (1, 0.5, 0.2),
        (1, 0.5, 0),
        (1, 0.1, 0.2),
    ]


def test_a_function_of_the_users_makes_the_optimizer(tmp_path: Path) -> None:
    made = optimizer_of(job(tmp_path, optimizer={"factory": "mine:optimizer", "options": {"lr": 0.3}}))(params())
    assert made.mine  # type: ignore[attr-defined]
    assert made.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"name": "Adma"}, "optimizer.name: 'Adma' is not in torch.optim; it has .*AdamW"),
        ({"name": "LBFGS"}, "LBFGS.step needs a closure"),
        ({"options": {"lr": -1}}, "optimizer.options: AdamW refuses its options: Invalid learning rate"),
        ({"factory": "mine:optimizer"}, "optimizer.options: optimizer needs the option 'lr'"),
        ({"factory": "mine:nothing"}, "optimizer.factory: mine:nothing gives a NoneType, no torch Optimizer"),
        ({"factory": "mine:absent"}, "optimizer.factory: .* has no 'absent'"),
        ({"name": "SGD", "factory": "mine:optimizer"}, "optimizer: give either name or factory"),
        ({"no_decay": ["*.biass"]}, "optimizer.no_decay: '.*biass' is no trained parameter's name; near it are a.bias"),
        ({"groups": [{"names": ["c.*"], "options": {}}]}, r"optimizer.groups.0: 'c\.\*' is no trained"),
        ({"groups": [{"names": ["a.*"], "options": {"rate": 1}}]}, "optimizer.groups.0.options: AdamW has no .*'rate'"),
        ({"groups": [{"options": {"lr": 1}}]}, r"optimizer.groups\W+0\W*: give names, branches or both"),
    ],
)
def test_a_wrong_optimizer_is_told_by_field(tmp_path: Path, optimizer: dict[str, Any], words: str) -> None:
    with pytest.raises(FileError, match=words):
        optimizer_of(job(tmp_path, optimizer=optimizer))(params())


def test_warm_up_then_a_cosine(tmp_path: Path) -> None:
    found = rates(job(tmp_path, scheduler={"warmup": 2, "floor": 0.5}), 10)
    assert found[:3] == [0.5, 1.0, 1.0]
    assert found[6] == pytest.approx(0.75)
    assert found == sorted(found[:2]) + sorted(found[2:], reverse=True)


def test_any_scheduler_of_torch_by_name(tmp_path: Path) -> None:
    assert rates(job(tmp_path, scheduler={"name": "StepLR", "options": {"step_size": 2, "gamma": 0.5}}), 5) == [
        1.0, 1.0, 0.5, 0.5, 0.25,
    ]  # fmt: skip


def test_a_warm_up_before_any_scheduler(tmp_path: Path) -> None:
    made = job(tmp_path, scheduler={"name": "ExponentialLR", "options": {"gamma": 0.5}, "warmup": 4})
    assert rates(made, 7) == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.25]


def test_a_function_of_the_users_makes_the_scheduler_and_is_told_the_steps(tmp_path: Path) -> None:
    found = rates(job(tmp_path, scheduler={"factory": "mine:falling"}), 3)
    assert found == pytest.approx([1.0, 0.9, 0.8])


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ({"name": "StepRL"}, "scheduler.name: 'StepRL' is not in torch.optim.lr_scheduler; it has .*StepLR"),
        ({"name": "StepLR"}, "scheduler.options: StepLR needs the option 'step_size'"),
        ({"name": "StepLR", "options": {"size": 3}}, "scheduler.options: StepLR has no option 'size'"),
        ({"name": "LinearLR", "options": {"start_factor": 2}}, "scheduler.options: LinearLR refuses its options"),
        ({"name": "StepLR", "floor": 0.1}, "scheduler: floor: it belongs to the cosine"),
        ({"options": {"gamma": 1}}, "scheduler: options: they belong to a name or factory"),
        ({"factory": "mine:nothing"}, "scheduler.factory: mine:nothing gives a NoneType, no LRScheduler"),
        ({"name": "ReduceLROnPlateau", "warmup": 2}, "scheduler.warmup: ReduceLROnPlateau follows the loss"),
    ],
)
def test_a_wrong_scheduler_is_told_by_field(tmp_path: Path, scheduler: dict[str, Any], words: str) -> None:
    with pytest.raises(FileError, match=words):
        rates(job(tmp_path, scheduler=scheduler), 1)


def test_what_only_shows_with_the_model_or_a_step_is_told_before_a_run(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    captured = capture(model, {"input": torch.randn(4, 3)}, loss=lambda result, _: result.mean())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    check_update(job(tmp_path, scheduler={"name": "StepLR", "options": {"step_size": 1}}), captured)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    with pytest.raises(FileError, match=r"optimizer.no_decay: 'norm' is no trained parameter's name"):
        check_update(job(tmp_path, optimizer={"no_decay": ["norm"]}), captured)
    with pytest.raises(FileError, match=r"scheduler.options: StepLR refuses them: unsupported operand"):
        check_update(job(tmp_path, scheduler={"name": "StepLR", "options": {"step_size": "x"}}), captured)


def test_a_scheduler_for_each_group_is_made_by_name(tmp_path: Path) -> None:
    optimizer = optimizer_of(job(tmp_path, optimizer={"no_decay": ["*.bias"]}))(params())
    make = scheduler_of(
        job(tmp_path, scheduler={"name": "OneCycleLR", "options": {"max_lr": [1.0, 2.0], "total_steps": 10}})
    )
    assert make is not None
    assert isinstance(make(optimizer), lr_scheduler.OneCycleLR)

"""Checkpoints: whole or not there, pruned, and refused where they are another model's."""

from pathlib import Path

import pytest
import torch
from torch import nn

from plait.errors import CheckpointError, FileError
from plait.runtime import checkpoint


@pytest.fixture
def parameters() -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {"a.weight": nn.Parameter(torch.randn(3, 2)), "b": nn.Parameter(torch.randn(4))}


def stepped(parameters: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(list(parameters.items()), lr=0.1)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def save(folder: Path, step: int, parameters: dict[str, nn.Parameter], keep: int = 3) -> Path:
    optimizer = stepped(parameters)
    own = {name: p.detach() for name, p in parameters.items()}
    tensors = own | checkpoint.optimizer_tensors(optimizer, parameters)
    return checkpoint.save(folder, step, tensors, {"model": "m"}, keep)


def test_parameters_and_optimizer_state_come_back(tmp_path: Path, parameters: dict[str, nn.Parameter]) -> None:
    path = save(tmp_path, 1, parameters)
    fresh = {name: nn.Parameter(torch.zeros_like(p)) for name, p in parameters.items()}
    optimizer = torch.optim.AdamW(list(fresh.items()), lr=0.1)
    checkpoint.load(path, fresh, optimizer)
    for name, parameter in fresh.items():
        assert torch.equal(parameter, parameters[name])
        assert torch.allclose(optimizer.state[parameter]["exp_avg"], torch.full_like(parameter, 0.1))
        assert float(optimizer.state[parameter]["step"]) == 1


def test_only_the_newest_are_kept(tmp_path: Path, parameters: dict[str, nn.Parameter]) -> None:
    for step in (2, 10, 9, 11):
        save(tmp_path, step, parameters, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-11"]
    assert checkpoint.latest(tmp_path) == tmp_path / "step-11"


def test_a_half_written_one_is_not_taken_for_whole(tmp_path: Path, parameters: dict[str, nn.Parameter]) -> None:
    whole = save(tmp_path, 1, parameters)
    (tmp_path / ".step-2.writing").mkdir()
    (tmp_path / "step-3").mkdir()
    assert checkpoint.latest(tmp_path) == whole


def test_a_folder_without_any_has_no_latest(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "absent") is None


def test_another_models_checkpoint_is_refused(tmp_path: Path, parameters: dict[str, nn.Parameter]) -> None:
    path = save(tmp_path, 1, parameters)
    with pytest.raises(CheckpointError, match="lacks c"):
        checkpoint.load(path, {"c": nn.Parameter(torch.zeros(1))}, None)
    with pytest.raises(CheckpointError, match=r"b has shape \(4,\), the model's has \(5,\)"):
        checkpoint.load(path, {"b": nn.Parameter(torch.zeros(5))}, None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "plait-checkpoint/99"}'])
def test_an_unreadable_state_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / checkpoint.STATE).write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        checkpoint.read_state(tmp_path)
    with pytest.raises(FileError, match="cannot read"):
        checkpoint.read_state(tmp_path / "absent")

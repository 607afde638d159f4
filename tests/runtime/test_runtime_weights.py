"""Weights from safetensors folders: only what is wanted, by name, and every mismatch named."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from plait.errors import CheckpointError, FileError
from plait.runtime.weights import INDEX, load, tensors_in


def test_one_file_is_read_by_name(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    wanted = {"a": torch.zeros(2)}
    load(tmp_path, wanted, {})
    assert torch.equal(wanted["a"], torch.ones(2))


def test_several_files_are_found_by_their_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.full((2,), 2.0)}, tmp_path / "two.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    wanted = {"a": torch.zeros(2), "b": torch.zeros(2)}
    load(tmp_path, wanted, {})
    assert wanted["b"].tolist() == [2.0, 2.0]


def test_a_tied_parameter_is_found_under_its_other_name(tmp_path: Path) -> None:
    save_file({"head.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    wanted = {"embedding.weight": torch.zeros(2)}
    load(tmp_path, wanted, {"head.weight": "embedding.weight", "embedding.weight": "embedding.weight"})
    assert torch.equal(wanted["embedding.weight"], torch.ones(2))


def test_what_is_missing_or_of_another_shape_is_named(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="lacks b, c"):
        load(tmp_path, {"c": torch.zeros(1), "a": torch.zeros(2), "b": torch.zeros(1)}, {})
    with pytest.raises(CheckpointError, match=r"a has shape \(2,\), the model's has \(3,\)"):
        load(tmp_path, {"a": torch.zeros(3)}, {})


def test_a_folder_without_weights_or_with_broken_ones_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"no model\.safetensors"):
        tensors_in(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(FileError, match=r"model\.safetensors: cannot read"):
        tensors_in(tmp_path)
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(FileError, match="not an index"):
        tensors_in(tmp_path)

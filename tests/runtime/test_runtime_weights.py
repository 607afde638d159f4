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


def test_a_single_file_or_an_index_can_be_named_itself(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "some.safetensors")
    (tmp_path / "some.index.json").write_text(json.dumps({"weight_map": {"a": "some.safetensors"}}))
    for name in ("some.safetensors", "some.index.json"):
        wanted = {"a": torch.zeros(2)}
        load(tmp_path / name, wanted, {})
        assert torch.equal(wanted["a"], torch.ones(2))


def test_an_absent_path_or_a_file_that_the_index_lacks_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="absent: there is no such file or folder"):
        tensors_in(tmp_path / "absent")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(FileError, match=r"gone\.safetensors: cannot read"):
        load(tmp_path, {"a": torch.zeros(2)}, {})


def test_an_index_that_names_another_file_than_the_tensors_own_is_told(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "one.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))
    with pytest.raises(FileError, match=r"one\.safetensors: b: cannot read"):
        load(tmp_path, {"b": torch.zeros(2)}, {})


def test_names_near_a_missing_one_are_shown(tmp_path: Path) -> None:
    save_file({"model.layers.0.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks layers\.0\.weight; near layers\.0\.weight it has model\.layers"):
        load(tmp_path, {"layers.0.weight": torch.zeros(2)}, {"layers.0.weight": "layers.0.weight"})


def test_tensors_that_the_model_lacks_are_told_and_not_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "old": torch.ones(3)}, tmp_path / "model.safetensors")
    wanted = {"a": torch.zeros(2)}
    with pytest.warns(UserWarning, match="the model has no old"):
        load(tmp_path, wanted, {"a": "a"}, tell=True)
    assert torch.equal(wanted["a"], torch.ones(2))


def test_floating_point_numbers_are_converted_and_others_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.full((2,), 1.5, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    wanted = {"a": torch.zeros(2)}
    load(tmp_path, wanted, {})
    assert wanted["a"].tolist() == [1.5, 1.5]
    with pytest.raises(CheckpointError, match=r"a has dtype torch\.bfloat16, the model's has torch\.int64"):
        load(tmp_path, {"a": torch.zeros(2, dtype=torch.int64)}, {})

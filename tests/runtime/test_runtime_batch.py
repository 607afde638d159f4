"""The global batch: cut into micro-batches, and refused where it isn't what the plan is for."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.errors import RunError
from plait.model.graph import TensorSpec
from plait.runtime.batch import Batch, Portion, divided, portion_of
from plait.schedule.action import ALL

SPECS = {
    "x": TensorSpec(shape=(1, 2), dtype="float32"),
    "scale": TensorSpec(shape=(), dtype="float32", batch_dim=None),
}
CPU = torch.device("cpu")


def whole(samples: int = 4) -> dict[str, Any]:
    return {"x": torch.arange(2.0 * samples).view(samples, 2), "scale": torch.tensor(3.0)}


def test_micro_batches_are_consecutive_samples() -> None:
    batch = Batch(portion_of(whole(), SPECS), SPECS, [1, 3], CPU)
    assert torch.equal(torch.cat([batch(0)["x"], batch(1)["x"]]), whole()["x"])
    assert batch(1)["x"].shape == (3, 2)
    assert batch(1)["scale"] == 3.0
    assert torch.equal(batch(ALL)["x"], whole()["x"])


def test_of_micro_batches_that_are_not_read_there_are_no_inputs() -> None:
    read = {"x": whole()["x"][[0, 3]], "scale": torch.tensor(3.0)}
    batch = Batch(Portion(4, [0, 3], read), SPECS, [1, 2, 1], CPU)
    assert [batch(m).get("x", torch.empty(0)).tolist() for m in range(3)] == [[[0.0, 1.0]], [], [[6.0, 7.0]]]
    assert batch(ALL) == {}
    assert Batch(Portion(4, [], {}), SPECS, [4], CPU)(0) == {}


def test_a_portion_holds_as_many_samples_as_it_says() -> None:
    with pytest.raises(RunError, match="holds 4 samples, but 1 were to be read"):
        portion_of(Portion(4, [2], whole()), SPECS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": None}, "input 'x' is missing"),
        ({"x": [[0.0, 1.0]] * 4}, "input 'x' is of type list; it must be a tensor"),
        ({"x": torch.zeros(4, 2).to_sparse()}, "x is torch.sparse.FloatTensor; it must be an ordinary tensor"),
        ({"x": torch.zeros(5, 2)}, "holds 5 samples, but the plan's micro-batches are 4"),
        ({"x": torch.zeros(4, 3)}, r"x has shape \(4, 3\), the plan is for \(4, 2\)"),
        ({"x": torch.zeros(4, 2, dtype=torch.float64)}, "x is torch.float64, the plan is for float32"),
    ],
)
def test_another_form_is_refused_with_what_would_be_right(change: dict[str, Any], words: str) -> None:
    with pytest.raises(RunError, match=words):
        Batch(portion_of(whole() | change, SPECS), SPECS, [1, 3], CPU)


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_batch_of_another_size_is_divided_evenly(samples: int, like: list[int]) -> None:
    sizes = divided(samples, like)
    assert sum(sizes) == samples
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(len(like), samples)

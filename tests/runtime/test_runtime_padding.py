"""Batches are filled up to the lengths that the user chose."""

import pytest
import torch

from plait.errors import RunError
from plait.plan.lengths import Lengths
from plait.runtime.padding import planned

BATCH = {"ids": torch.ones(2, 5, dtype=torch.int64), "image": torch.ones(2, 3)}


@pytest.mark.parametrize(("options", "length"), [({"length": 8}, 8), ({"multiple_of": 4}, 8), ({}, 5)], ids=str)
def test_the_example_gets_the_planned_length(options: dict[str, int], length: int) -> None:
    found = planned(BATCH, Lengths(pad={"ids": 7}, **options))
    assert found["ids"].tolist() == [[1] * 5 + [7] * (length - 5)] * 2
    assert found["image"] is BATCH["image"]


def test_samples_longer_than_planned_are_refused() -> None:
    with pytest.raises(RunError, match=r"ids is 5 long, lengths\.length is 4"):
        planned(BATCH, Lengths(pad={"ids": 7}, length=4))

"""Loss shares: micro-batches weigh as they do in the global batch's loss."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from plait.model.graph import Loss, Scope
from plait.runtime.shares import shares_of
from plait.schedule.action import ALL

LABELS = {0: torch.tensor([1, 1, 1]), 1: torch.tensor([1, 0, 0]), 2: torch.tensor([0, 0, 0])}


def slices(micro_batch: int) -> Mapping[str, Tensor]:
    return {"labels": LABELS[micro_batch]}


def count(loss: Loss, inputs: Mapping[str, Tensor]) -> Tensor:
    return inputs["labels"].sum()


def shares(scope: Scope, coefficient: float = 1.0) -> dict[tuple[str, int], float]:
    return shares_of([Loss(value="l", scope=scope, coefficient=coefficient)], [3, 2, 1], slices, count)


def test_a_mean_weighs_by_samples() -> None:
    assert shares(Scope.MICROBATCH) == pytest.approx({("l", 0): 3 / 6, ("l", 1): 2 / 6, ("l", 2): 1 / 6})


def test_a_token_mean_weighs_by_counts_and_none_counts_nothing() -> None:
    assert shares(Scope.WEIGHTED, 2.0) == {("l", 0): 1.5, ("l", 1): 0.5, ("l", 2): 0.0}


def test_a_batch_loss_stands_for_itself() -> None:
    assert shares(Scope.BATCH, 0.5) == {("l", ALL): 0.5}

"""Random streams: dropout depends on seed, step, micro-batch and layer alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from plait.model import zoo
from plait.model.capture import Captured, capture
from plait.model.stages import build_stage
from plait.model.streams import Stream


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture(*zoo.gpt2())


@pytest.fixture
def batch() -> dict[str, Tensor]:
    return zoo.gpt2()[1]


def test_dropout_does_not_depend_on_the_cut(
    captured: Captured, batch: dict[str, Tensor], pipeline: Callable[[Captured, int], object]
) -> None:
    losses = [pipeline(captured, length).loss(batch, [2, 2]).item() for length in (1, 2, 3)]  # type: ignore[attr-defined]
    assert len(set(losses)) == 1


def test_a_stage_repeats_its_random_numbers_and_leaves_the_callers_alone(
    captured: Captured, batch: dict[str, Tensor]
) -> None:
    stage = build_stage(captured, [x.name for x in captured.graph.layers])
    state = torch.get_rng_state()
    first = stage(batch, Stream(1, 2, 3))["loss"]
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    assert torch.equal(stage(batch, Stream(1, 2, 3))["loss"], first)


@pytest.mark.parametrize("other", [Stream(0, 2, 3), Stream(1, 0, 3), Stream(1, 2, 0)], ids=str)
def test_another_seed_step_or_micro_batch_draws_other_numbers(
    captured: Captured, batch: dict[str, Tensor], other: Stream
) -> None:
    stage = build_stage(captured, [x.name for x in captured.graph.layers])
    assert not torch.equal(stage(batch, other)["loss"], stage(batch, Stream(1, 2, 3))["loss"])


def test_layers_draw_different_numbers() -> None:
    with torch.random.fork_rng():
        stream = Stream(1, 2, 3)
        stream.seed_layer(0)
        first = torch.rand(4)
        stream.seed_layer(1)
        assert not torch.equal(first, torch.rand(4))

"""Plain modules as users write them are captured, and run by real ranks with the whole model's gradients."""

import pytest

from plait.model.capture import capture
from support import gradients, user_modules
from support.pool import Pool


def test_lists_in_lists_and_dictionaries_of_modules_are_cut_along_the_module_tree() -> None:
    graph = capture(*user_modules.make("nested")).graph
    assert [layer.name for layer in graph.branches["stages"]] == [
        "stem.0", "stem.1", "stages.0.0", "stages.0.1", "stages.1.0", "stages.1.1",
    ]  # fmt: skip
    assert {"heads.a", "heads.b"} <= set(graph.branches)


def test_a_sum_of_losses_that_starts_from_zeros_has_no_term_for_them() -> None:
    graph = capture(*user_modules.make("auxiliary")).graph
    assert [(term.value, term.coefficient) for term in graph.losses] == [
        ("loss.mse_loss", 0.3), ("loss.mse_loss_1", 0.3), ("loss.mse_loss_2", 1.0),
    ]  # fmt: skip
    assert [layer.name for layer in graph.branches["blocks"]] == [f"blocks.{i}" for i in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("name", user_modules.MODELS)
def test_gradients_equal_the_unpartitioned_module(ranks: Pool, name: str) -> None:
    make = user_modules.maker(name)
    graph = capture(*make()).graph
    for way, error in gradients.errors(ranks, make, graph):
        assert error <= 1, way

"""Every model of the zoo, partitioned three ways and run by real processes, has the gradients of the whole model."""

import pytest

from plait.model import zoo
from plait.model.capture import capture
from support import gradients, zoo_models
from support.pool import Pool

MODELS = [name for name in zoo.__all__ if name.islower()]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_unpartitioned_model(ranks: Pool, name: str) -> None:
    make = zoo_models.maker(name)
    graph = capture(*make()).graph
    for way, error in gradients.errors(ranks, make, graph):
        assert error <= 1, way

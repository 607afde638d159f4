"""Random branch models, cut and placed at random and run by real processes, have the gradients of the whole model."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plait.model.capture import capture
from support import gradients, partitions, random_models
from support.pool import Pool

RANKS = 3


@pytest.mark.slow
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    recipe=random_models.recipes(),
    way=st.sampled_from(["pipeline", "opposed", "apart", "scattered"]),
    seed=st.integers(0, 1000),
    uneven=st.booleans(),
    again=st.booleans(),
)
def test_gradients_equal_the_unpartitioned_model(
    ranks: Pool, recipe: random_models.Recipe, way: str, seed: int, uneven: bool, again: bool
) -> None:
    make = random_models.maker(recipe)
    graph = capture(*make()).graph
    homes = partitions.scattered(graph, RANKS, seed) if way == "scattered" else getattr(partitions, way)(graph, RANKS)
    micro_batches = partitions.UNEVEN if uneven else partitions.MICRO_BATCHES
    plan = partitions.plan_by(graph, RANKS, homes, micro_batches, tuple(graph.branches) if again else ())
    assert gradients.error(gradients.run(ranks, make, plan), gradients.of_model(make)) <= 1

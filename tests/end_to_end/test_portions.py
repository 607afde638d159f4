"""Each rank is given no more of the batch than it reads, and the model becomes the same."""

import pytest

from plait.model.capture import capture
from plait.model.graph import BranchGraph
from plait.plan.homes import Home
from support import jobs, models, partitions
from support.pool import Pool


def text_on_two_ranks(graph: BranchGraph) -> dict[str, Home]:
    """CLIP's text tower twice, each for half of the micro-batches, and the rest on rank 0."""
    return {x.name: ((1, (0, 3)), (2, (1, 2))) if x.branch == "text_model" else ((0, "all"),) for x in graph.layers}


CASES = {
    "replicas": (models.clip, text_on_two_ranks, [[*range(8)], [0, 1, 6, 7], [2, 3, 4, 5]]),
    "no inputs in the middle": (models.gpt2, lambda g: partitions.pipeline(g, 3), [[*range(8)], [], [*range(8)]]),
    "weighted losses and replicas": (models.gpt2, lambda g: partitions.scattered(g, 3), None),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_needs_only_the_samples_that_it_reads(ranks: Pool, case: str) -> None:
    make, homes, expected = CASES[case]
    graph = capture(*make()).graph
    plan = partitions.plan_by(graph, 3, homes(graph))
    losses, parameters = jobs.plain(make, 2)
    found = ranks.run(3, jobs.train_on_portions, make, plan.dump())
    if expected is not None:
        assert [positions for *_, positions in found] == expected
    for given, own, _ in found:
        assert given == pytest.approx(losses, rel=1e-5)
        for name, tensor in own.items():
            reference = parameters[name]
            assert float((tensor - reference).abs().max()) <= 1e-5 * float(reference.abs().max()) + 1e-7, name

"""The same losses and weights under any plan as in one process."""

from collections.abc import Mapping
from typing import Any

import pytest
from support import jobs
from support.models import clip
from support.plans import plan_of
from support.pool import Pool
from torch import Tensor

from plait.model.capture import capture

VISION, TEXT = "vision_model", "text_model"
EVEN, ODD = (0, 2), (1, 3)

PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "one process": (1, {VISION: [0], TEXT: [0], "loss": [0]}, "branch_aware"),
    "gpipe": (4, {VISION: [0, 1], TEXT: [2, 3], "loss": [3]}, "gpipe"),
    "1f1b": (4, {VISION: [0, 1], TEXT: [2, 3], "loss": [3]}, "1f1b"),
    "opposed, branch aware": (4, {VISION: [0, 1, 2, 3], TEXT: [3, 2, 1, 0], "loss": [1]}, "branch_aware"),
    "chimera": (
        2,
        {
            VISION: [[(0, EVEN), (1, ODD)], [(1, EVEN), (0, ODD)]],
            TEXT: [[(0, EVEN), (1, ODD)], [(1, EVEN), (0, ODD)]],
            "loss": [1],
        },
        "chimera",
    ),
    "data parallel 2 x pipeline 2": (
        4,
        {
            VISION: [[(0, EVEN), (2, ODD)], [(1, EVEN), (3, ODD)]],
            TEXT: [[(1, EVEN), (3, ODD)], [(0, EVEN), (2, ODD)]],
            "loss": [3],
        },
        "branch_aware",
    ),
}


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, reference in expected.items():
        limit = 1e-5 * float(reference.abs().max()) + 1e-8
        assert float((found[name] - reference).abs().max()) <= limit, name


def merged(results: list[Any]) -> tuple[list[float], dict[str, Tensor]]:
    """Losses, and all ranks' parameters; ranks that hold the same one must hold it equally."""
    losses, parameters, _ = results[0]
    found: dict[str, Tensor] = dict(parameters)
    for others_losses, own, _ in results[1:]:
        assert others_losses == losses
        for name, tensor in own.items():
            assert_equal({name: tensor}, {name: found.setdefault(name, tensor)})
    return losses, found


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("recompute", [False, True])
def test_clip_trains_as_in_a_plain_loop(ranks: Pool, name: str, recompute: bool) -> None:
    count, spread, schedule = PLANS[name]
    graph = capture(*clip()).graph
    again = (VISION, TEXT) if recompute else ()
    plan = plan_of(graph, count, spread, schedule, [2, 2, 2, 2], again)
    losses, weights = merged(ranks.run(count, jobs.train, clip, plan.dump()))
    expected_losses, expected = jobs.plain(clip)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert_equal(weights, expected)

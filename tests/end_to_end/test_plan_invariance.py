"""The same losses and weights under any plan as in one process."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope
from plait.plan.plan import Plan
from plait.plan.schedules import schedule_of
from plait.runtime.checkpoint import latest
from support import jobs, models
from support.plans import plan_of
from support.pool import Pool

VISION, TEXT = "vision_model", "text_model"
EVEN, ODD = (0, 2), (1, 3)
MICRO_BATCHES = [2, 2, 2, 2]

CLIP_PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "one process": (1, {VISION: [0], TEXT: [0], "loss": [0]}, "branch_aware"),
    "gpipe": (4, {VISION: [0, 1], TEXT: [2, 3], "loss": [3]}, "gpipe"),
    "1f1b": (4, {VISION: [0, 1], TEXT: [2, 3], "loss": [3]}, "1f1b"),
    "opposed": (4, {VISION: [0, 1, 2, 3], TEXT: [3, 2, 1, 0], "loss": [1]}, "branch_aware"),
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
GPT2_PLANS: dict[str, tuple[int, dict[str, Any], str]] = {
    "1f1b, tied weights apart": (4, {"transformer": [0, 1, 2, 3]}, "1f1b"),
    "data parallel": (2, {"transformer": [[(0, EVEN), (1, ODD)]]}, "gpipe"),
}


@cache
def graph_of(make: Callable[[], models.Example]) -> BranchGraph:
    return capture(*make()).graph


def clip_plan(name: str, make: Callable[[], models.Example] = models.clip, recompute: bool = False) -> tuple[int, Plan]:
    count, spread, schedule = CLIP_PLANS[name]
    again = (VISION, TEXT) if recompute else ()
    return count, plan_of(graph_of(make), count, spread, schedule, MICRO_BATCHES, again)


@pytest.fixture(scope="module")
def plain_clip() -> tuple[list[float], dict[str, Tensor]]:
    return jobs.plain(models.clip)


@pytest.fixture(scope="module")
def alone_with_dropout(ranks: Pool) -> tuple[list[float], dict[str, Tensor]]:
    count, plan = clip_plan("one process", models.clip_with_dropout)
    return merged(ranks.run(count, jobs.train, models.clip_with_dropout, plan.dump()))


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


@pytest.mark.parametrize("recompute", [False, True], ids=["hold", "recompute"])
@pytest.mark.parametrize("name", CLIP_PLANS)
def test_clip_trains_as_in_a_plain_loop(
    ranks: Pool, plain_clip: tuple[list[float], dict[str, Tensor]], name: str, recompute: bool
) -> None:
    count, plan = clip_plan(name, recompute=recompute)
    losses, weights = merged(ranks.run(count, jobs.train, models.clip, plan.dump()))
    assert losses == pytest.approx(plain_clip[0], rel=1e-5)
    assert_equal(weights, plain_clip[1])


@pytest.mark.parametrize(
    ("name", "recompute"), [("gpipe", False), ("opposed", True), ("data parallel 2 x pipeline 2", False)]
)
def test_dropout_does_not_depend_on_the_plan(
    ranks: Pool, alone_with_dropout: tuple[list[float], dict[str, Tensor]], name: str, recompute: bool
) -> None:
    count, plan = clip_plan(name, models.clip_with_dropout, recompute)
    losses, weights = merged(ranks.run(count, jobs.train, models.clip_with_dropout, plan.dump()))
    assert losses == pytest.approx(alone_with_dropout[0], rel=1e-5)
    assert_equal(weights, alone_with_dropout[1])


def test_dropout_is_on_at_all(
    plain_clip: tuple[list[float], dict[str, Tensor]], alone_with_dropout: tuple[list[float], dict[str, Tensor]]
) -> None:
    assert alone_with_dropout[0] != pytest.approx(plain_clip[0], rel=1e-3)


@pytest.mark.parametrize("name", GPT2_PLANS)
def test_token_mean_with_ignored_labels_is_weighted_rightly(ranks: Pool, name: str) -> None:
    graph = graph_of(models.gpt2)
    assert [loss.scope for loss in graph.losses] == [Scope.WEIGHTED]
    count, spread, schedule = GPT2_PLANS[name]
    (branch,) = graph.branches
    plan = plan_of(graph, count, {branch: next(iter(spread.values()))}, schedule, MICRO_BATCHES)
    losses, weights = merged(ranks.run(count, jobs.train, models.gpt2, plan.dump()))
    expected_losses, expected = jobs.plain(models.gpt2)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert_equal(weights, expected)


def test_a_run_goes_on_under_another_plan_and_world_size(ranks: Pool, tmp_path: Path) -> None:
    count, plan = clip_plan("opposed")
    whole = merged(ranks.run(count, jobs.train, models.clip, plan.dump(), 4))
    count, plan = clip_plan("gpipe")
    first = ranks.run(count, jobs.train, models.clip, plan.dump(), 2, str(tmp_path))
    saved = latest(tmp_path)
    assert saved is not None
    count, plan = clip_plan("chimera")
    losses, weights = merged(ranks.run(count, jobs.train, models.clip, plan.dump(), 2, "", str(saved)))
    assert first[0][0] + losses == pytest.approx(whole[0], rel=1e-5)
    assert_equal(weights, whole[1])


def test_optimizer_state_and_learning_rate_go_on_too(ranks: Pool, tmp_path: Path) -> None:
    count, plan = clip_plan("opposed")
    whole = ranks.run(count, jobs.train_with_schedule, models.clip, plan.dump(), 4)
    ranks.run(count, jobs.train_with_schedule, models.clip, plan.dump(), 2, str(tmp_path))
    saved = latest(tmp_path)
    count, plan = clip_plan("gpipe")
    rest = ranks.run(count, jobs.train_with_schedule, models.clip, plan.dump(), 2, "", str(saved))
    assert rest[0][0] == pytest.approx(whole[0][0][2:], rel=1e-4)
    assert rest[0][1] == whole[0][1]


def test_groups_of_parameters_are_the_same_under_any_plan_and_go_on_too(ranks: Pool, tmp_path: Path) -> None:
    count, plan = clip_plan("opposed")
    first = ranks.run(count, jobs.train_in_groups, models.clip, plan.dump(), 2, str(tmp_path))
    count, plan = clip_plan("chimera")
    rest = ranks.run(count, jobs.train_in_groups, models.clip, plan.dump(), 2, "", str(latest(tmp_path)))
    assert first[0][0] + rest[0][0] == pytest.approx(jobs.plain_in_groups(models.clip, 4), rel=1e-4)
    assert len(rest[0][1]) == 4
    assert rest[0][1] == rest[1][1]


def test_gradients_are_clipped_by_their_global_norm(ranks: Pool) -> None:
    count, plan = clip_plan("opposed")
    losses, weights = merged(ranks.run(count, jobs.train, models.clip, plan.dump(), 3, "", "", 0.05))
    expected_losses, expected = jobs.plain(models.clip, max_norm=0.05)
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert_equal(weights, expected)


def test_evaluation_gives_loss_and_outputs_for_any_batch_size(ranks: Pool) -> None:
    graph = capture(*models.clip(), outputs=("image_embeds", "text_embeds")).graph
    count, spread, schedule = CLIP_PLANS["opposed"]
    plan = plan_of(graph, count, spread, schedule, MICRO_BATCHES)
    results = ranks.run(count, jobs.evaluate, models.clip, plan.dump(), [8, 5, 1])
    model, batch = models.clip()
    model.eval()
    with torch.no_grad():
        expected = [model(**{n: t[:size] for n, t in batch.items()}, return_loss=True) for size in (8, 5, 1)]
    mean = sum(float(e.loss) * n for e, n in zip(expected, (8, 5, 1), strict=True)) / 14
    assert all(r["loss"] == pytest.approx(mean, rel=1e-5) for r in results)
    for name in ("image_embeds", "text_embeds"):
        assert torch.allclose(results[0][name], torch.cat([e[name] for e in expected]), atol=1e-6)
    assert all("image_embeds" not in r for r in results[1:])


def test_final_weights_load_into_the_original_class(ranks: Pool, tmp_path: Path) -> None:
    from transformers import CLIPModel

    count, plan = clip_plan("opposed")
    results = ranks.run(count, jobs.train_and_export, models.clip, plan.dump(), str(tmp_path))
    loaded = CLIPModel.from_pretrained(tmp_path)
    own = {name: tensor for result in results for name, tensor in result.items()}
    assert_equal(own, {name: p.detach() for name, p in loaded.named_parameters()})


def test_a_run_starts_from_pretrained_weights_read_by_slices(ranks: Pool, tmp_path: Path) -> None:
    model, _ = models.clip()
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    count, plan = clip_plan("opposed")
    losses, _ = merged(ranks.run(count, jobs.train_from_folder, models.clip, plan.dump(), str(tmp_path)))
    assert losses == pytest.approx(jobs.plain(models.clip, 1)[0], rel=1e-5)


def test_split_backward_gives_the_same_gradients(
    ranks: Pool, plain_clip: tuple[list[float], dict[str, Tensor]]
) -> None:
    count, plan = clip_plan("opposed")
    data = plan.model_dump(mode="python", exclude={"schedule"})
    rows = [" ".join(_split(word) for word in line.split()) for line in schedule_of(plan).to_text()]
    split = Plan.model_validate({**data, "schedule": {"name": "by hand", "order": rows}})
    losses, weights = merged(ranks.run(count, jobs.train, models.clip, split.dump()))
    assert losses == pytest.approx(plain_clip[0], rel=1e-5)
    assert_equal(weights, plain_clip[1])


def _split(word: str) -> str:
    return f"{word.replace('B', 'I')} {word.replace('B', 'W')}" if "B" in word else word

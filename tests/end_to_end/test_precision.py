"""Mixed precision: what a loop in one process gives in the same precision, and no small update lost."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from plait.errors import PlanError
from plait.model.capture import capture
from plait.model.precision import Precision
from plait.plan.plan import Plan
from plait.runtime.checkpoint import latest
from plait.runtime.engine import Engine
from support import gradients, partitions, zoo_models
from support.jobs import Maker, sgd
from support.partitions import MICRO_BATCHES, plan_by
from support.pool import Pool

ROUNDING = 2.0**-7
"""Between two neighbouring numbers of bfloat16, as a share of them."""
ALLOWED = 2 * ROUNDING
"""Of a gradient, as a vector: the loop rounds its sums over a batch, or the other order of them, as well."""


def labels(part: Mapping[str, Tensor]) -> float:
    return float((part["labels"][:, 1:] != -100).sum())


CASES: dict[str, tuple[tuple[int, ...], Callable[[Mapping[str, Tensor]], float] | None]] = {
    "clip": ((zoo_models.SAMPLES,), None),
    "two_towers": (MICRO_BATCHES, None),
    "llava": (MICRO_BATCHES, labels),
    "gpt2_lora": (MICRO_BATCHES, labels),
}


def plan_in(make: Maker, precision: str, way: str = "opposed", ranks: int = 2) -> Plan:
    model, batch = make()
    graph = capture(model, batch, precision=precision).graph
    return plan_by(graph, ranks, partitions.WAYS[way](graph, ranks))


@pytest.mark.parametrize("precision", ["bf16", "bf16-params"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "two_towers" else pytest.mark.slow) for n in CASES])
def test_gradients_equal_a_loop_in_one_process(ranks: Pool, name: str, precision: str) -> None:
    make, (sizes, counts) = zoo_models.maker(name), CASES[name]
    loss, expected = gradients.in_micro_batches(make, sizes, Precision(precision), counts)
    small = 1e-2 * max(float(g.norm()) for g in expected.values())
    for way in partitions.WAYS:
        seen = set()
        for found, own in gradients.run(ranks, make, plan_in(make, precision, way)):
            assert found == pytest.approx(loss, rel=ROUNDING)
            for parameter, gradient in own.items():
                assert gradient.dtype is torch.float32
                reference = expected[parameter]
                off = float((gradient - reference).norm()) / (float(reference.norm()) + small)
                assert off <= ALLOWED, (way, parameter)
                seen.add(parameter)
        assert {n for n, g in expected.items() if float(g.norm()) > small} <= seen


def slow_sgd(named: Iterable[tuple[str, torch.nn.Parameter]]) -> torch.optim.Optimizer:
    """Steps too small for bfloat16."""
    return torch.optim.SGD([p for _, p in named], lr=1e-4)


def weights_after(
    rank: int, make: Maker, plan_text: str, steps: int, load: str = "", save: str = ""
) -> dict[str, tuple[Tensor, Tensor]]:
    """This rank's parameters with their masters after so many steps."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=slow_sgd, max_grad_norm=1.0, timeout=60) as engine:
        if load:
            engine.load_checkpoint(load)
        for _ in range(steps):
            engine.step(batch)
        if save:
            engine.save_checkpoint(save)
        own = {n: (engine.parameters[n].detach().clone(), m.detach().clone()) for n, m in engine.masters.items()}
        assert own.keys() == engine.parameters.keys()
        return own


def test_masters_keep_small_updates_and_checkpoints_keep_masters(ranks: Pool, tmp_path: Path) -> None:
    make = zoo_models.maker("two_towers")
    start = dict(make()[0].named_parameters())
    plan = plan_in(make, "bf16-params")
    whole = merged(ranks.run(2, weights_after, make, plan.dump(), 4))
    ranks.run(2, weights_after, make, plan.dump(), 2, "", str(tmp_path))
    other = plan_in(make, "bf16-params", "pipeline")
    resumed = merged(ranks.run(2, weights_after, make, other.dump(), 2, str(latest(tmp_path))))
    moved = kept = 0
    for name, (parameter, master) in whole.items():
        assert parameter.dtype is torch.bfloat16
        assert torch.equal(parameter, master.bfloat16())
        torch.testing.assert_close(resumed[name][1], master, rtol=1e-6, atol=1e-7)
        changed = master != start[name]
        moved += int(changed.sum())
        kept += int((changed & (parameter == start[name].bfloat16())).sum())
    # Most weights have moved by less than bfloat16 can tell: without masters they would never move.
    assert kept > 0.5 * moved > 0


def merged(found: list[dict[str, tuple[Tensor, Tensor]]]) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: pair for own in found for name, pair in own.items()}


def test_without_masters_the_same_steps_are_lost() -> None:
    model, batch = zoo_models.make("two_towers")
    model.to(torch.bfloat16)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = slow_sgd(model.named_parameters())
    for _ in range(4):
        optimizer.zero_grad()
        torch.autograd.backward(model(**{n: t.bfloat16() for n, t in batch.items()})["loss"])
        optimizer.step()
    moved = sum(int((p != before[n]).sum()) for n, p in model.named_parameters())
    assert moved < 0.1 * sum(p.numel() for p in model.parameters())


def skipped(rank: int, make: Maker, plan_text: str) -> tuple[bool, int, bool]:
    """Whether a step with an infinite input is left out on this rank too, its masters unchanged."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, max_grad_norm=1.0, timeout=60) as engine:
        before = {n: m.detach().clone() for n, m in engine.masters.items()}
        engine.step({n: t * float("inf") for n, t in batch.items()})
        same = all(torch.equal(m, before[n]) for n, m in engine.masters.items())
        return engine.outcome.finite, engine.skipped_steps, same


def test_a_gradient_that_is_not_finite_leaves_the_masters_alone(ranks: Pool) -> None:
    make = zoo_models.maker("two_towers")
    plan = plan_in(make, "bf16-params")
    assert ranks.run(2, skipped, make, plan.dump()) == [(False, 1, True)] * 2


def test_an_engine_refuses_a_plan_for_another_precision() -> None:
    make = zoo_models.maker("two_towers")
    plan = plan_in(make, "bf16", ranks=1)
    with pytest.raises(PlanError, match="precision: fp32 is asked for, but the plan is for bf16"):
        Engine(make()[0], plan, precision="fp32")

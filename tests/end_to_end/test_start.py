"""Where weights come from at the start: each rank makes only its own, with the values of an ordinary model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.model import zoo
from plait.model.capture import capture
from plait.model.deferred import deferred
from plait.plan.plan import Plan
from plait.runtime.engine import Engine
from support.gradients import Keep
from support.jobs import plain
from support.memory import taken
from support.models import Example
from support.plans import plan_of
from support.pool import Pool

Gradients = dict[str, Tensor]


def clip() -> Example:
    torch.manual_seed(5)
    return zoo.clip(layers=(2, 2), width=64, samples=4, dropout=0.0)


def clip_plan() -> Plan:
    spread = {"vision_model": [0, 1, 2, 3], "text_model": [3, 2, 1, 0], "loss": [1]}
    return plan_of(capture(*clip()).graph, 4, spread, "branch_aware", [2, 2])


def start_and_step(rank: int, make: Callable[[], Example], plan_text: str) -> tuple[int, int, int, float, Gradients]:
    """Bytes held at most while the engine starts, bytes held then, of own parameters; the loss and the gradients."""
    _, batch = make()

    def start() -> Engine:
        return Engine(deferred(lambda: make()[0]), Plan.parse(plan_text), optimizer=Keep, timeout=60)

    engine, most, held = taken(start)
    with engine:
        own = sum(p.nbytes for p in engine.parameters.values())
        loss = engine.step(batch)
        return most, held, own, loss, engine.optimizer.found if isinstance(engine.optimizer, Keep) else {}


def of_one_process(make: Callable[[], Example]) -> tuple[float, Gradients]:
    kept: list[Keep] = []

    def keep(named: Any) -> Keep:
        kept.append(Keep(named))
        return kept[0]

    losses, _ = plain(make, 1, keep)
    return losses[0], kept[0].found


@pytest.mark.slow
def test_each_rank_makes_only_its_own_weights_and_they_are_those_of_an_ordinary_model(ranks: Pool) -> None:
    found = ranks.run(4, start_and_step, clip, clip_plan().dump())
    loss, gradients = of_one_process(clip)
    sizes = [p.nbytes for p in clip()[0].parameters()]
    for most, held, own, _, _ in found:
        assert own < sum(sizes) / 2
        assert held < own + max(sizes)
        assert most < own + 3 * max(sizes)
    assert all(own_loss == pytest.approx(loss, rel=1e-5) for *_, own_loss, _ in found)
    together = {name: gradient for *_, part in found for name, gradient in part.items()}
    assert together.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(together[name], gradient, rtol=1e-3, atol=1e-6)

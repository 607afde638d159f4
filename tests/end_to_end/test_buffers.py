"""Running statistics after training are those of one process, also where a stage is recomputed."""

import pytest
import torch
from torch import Tensor

from plait.model.capture import capture
from plait.plan.plan import Plan
from plait.runtime.engine import Engine
from support import jobs, partitions, user_modules
from support.pool import Pool


def buffers_after(rank: int, make: jobs.Maker, plan_text: str) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of two steps and this rank's buffers after them."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=jobs.sgd, timeout=60) as engine:
        losses = [engine.step(batch) for _ in range(2)]
        return losses, {n: t.clone() for n, t in engine._parts.buffers.items()}


def merged(found: list[tuple[list[float], dict[str, Tensor]]]) -> tuple[list[float], dict[str, Tensor]]:
    return found[0][0], {name: tensor for _, own in found for name, tensor in own.items()}


@pytest.mark.parametrize("recompute", [False, True], ids=["hold", "recompute"])
def test_statistics_of_batches_are_updated_once_a_step(ranks: Pool, recompute: bool) -> None:
    make = user_modules.maker("convolving")
    graph = capture(*make()).graph
    again = tuple(graph.branches) if recompute else ()
    plan = partitions.plan_by(graph, 3, partitions.opposed(graph, 3), recompute=again)
    losses, buffers = merged(ranks.run(3, buffers_after, make, plan.dump()))
    model, batch = make()
    optimizer = jobs.sgd(model.parameters())
    for expected in losses:
        loss = jobs.loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert expected == pytest.approx(loss.item(), rel=1e-5)
    statistics = dict(model.named_buffers())
    assert set(buffers) == set(statistics)
    for name, tensor in statistics.items():
        assert torch.allclose(buffers[name].to(tensor.dtype), tensor, rtol=1e-5, atol=1e-7), name

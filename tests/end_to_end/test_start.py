"""Where weights come from at the start: each rank makes only its own, with the values of an ordinary model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from plait.model import zoo
from plait.model.capture import capture
from plait.model.deferred import deferred
from plait.plan.plan import Plan
from plait.runtime.checkpoint import latest
from plait.runtime.engine import Engine
from support.gradients import Keep
from support.jobs import adam, plain
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


class PartlyUsed(nn.Module):
    """Two layers, and a parameter and a buffer that no computation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.spare = nn.Linear(4, 4, bias=False)
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("scale", torch.full((4,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The mean square of two layers' results."""
        scale: Any = self.scale
        squares: Tensor = self.second(torch.relu(self.first(x)) * scale).square()
        return squares.mean()


def partly_used() -> Example:
    torch.manual_seed(6)
    return PartlyUsed(), {"x": torch.randn(4, 4)}


def partly_used_plan() -> Plan:
    graph = capture(*partly_used()).graph
    (branch,) = graph.branches
    return plan_of(graph, 2, {branch: [0, 1]}, "1f1b", [2, 2])


def start_from_weights(rank: int, plan_text: str, weights: str, folder: str) -> tuple[float, list[str]]:
    """The last loss of three steps with decay, and what this rank's optimizer steps. Checkpoint and weights stay."""
    _, batch = partly_used()
    model = deferred(lambda: partly_used()[0])
    with Engine(model, Plan.parse(plan_text), optimizer=adam, timeout=60, weights=weights) as engine:
        loss = [engine.step(batch) for _ in range(3)][-1]
        engine.save_checkpoint(Path(folder) / "checkpoints")
        engine.save_pretrained(folder)
        engine.load_checkpoint(str(latest(Path(folder) / "checkpoints")))
        return loss, sorted(engine.parameters)


def test_unused_parameters_are_read_kept_and_written_unchanged(ranks: Pool, tmp_path: Path) -> None:
    model, batch = partly_used()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.mul_(2)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(start, tmp_path / "start.safetensors")
    optimizer = adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        optimizer.step()
    given = partly_used_plan().dump(), str(tmp_path / "start.safetensors"), str(tmp_path / "out")
    found = ranks.run(2, start_from_weights, *given)
    assert [each for each, _ in found] == pytest.approx([loss.item()] * 2, rel=1e-5)
    assert [name for _, names in found for name in names if name.startswith("spare")] == []
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == start.keys()
    for name in ("spare.weight", "count"):
        assert torch.equal(written[name], start[name])
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(written[name], tensor, rtol=1e-4, atol=1e-6)

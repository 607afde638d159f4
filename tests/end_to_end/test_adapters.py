"""Adapters by peft are trained by real ranks, and come back as peft reads them."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from plait.model import zoo
from plait.model.capture import capture
from support import jobs, partitions, zoo_models
from support.partitions import plan_by
from support.pool import Pool


def test_export_is_what_peft_loads(ranks: Pool, tmp_path: Path) -> None:
    from peft import PeftModel

    make = zoo_models.maker("clip_lora")
    graph = capture(*make()).graph
    plan = plan_by(graph, 2, partitions.opposed(graph, 2))
    found = ranks.run(2, jobs.train_and_export, make, plan.dump(), str(tmp_path))
    trained = {n: p for own in found for n, p in own.items()}
    assert {p.name for p in tmp_path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}

    torch.manual_seed(3)  # the base model of zoo_models.make
    base, _ = zoo.clip(width=32, samples=zoo_models.SAMPLES)
    loaded = PeftModel.from_pretrained(base, tmp_path)
    parameters = dict(loaded.named_parameters())
    adapters = [n for n in trained if "lora_" in n or "modules_to_save" in n]
    assert len(adapters) == 2 * 2 * 2 * 2 + 1  # towers, layers, targets, matrices; the projection
    for name, parameter in trained.items():
        assert torch.equal(parameters[name], parameter), name


class Unused(nn.Module):
    """A tower and a head that has a parameter which it doesn't use."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Bilinear(8, 8, 1)
        self.head.register_parameter("idle", nn.Parameter(torch.ones(3)))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.tower:
            x = layer(x).tanh()
        loss: Tensor = self.head(x, x).square().mean()
        return loss


def unused() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    return Unused(), {"x": torch.randn(8, 8)}


@pytest.mark.parametrize("homes", ["pipeline", "replicas"])
def test_a_parameter_that_gets_no_gradient_is_left_alone(ranks: Pool, homes: str) -> None:
    """Even weight decay leaves it: an optimizer skips what has no gradient, and a sum over ranks makes none."""
    graph = capture(*unused()).graph
    both = ((0, (0, 3)), (1, (1, 2)))
    spread = {x.name: both for x in graph.layers} if homes == "replicas" else partitions.pipeline(graph, 2)
    plan = plan_by(graph, 2, spread)
    assert bool(plan.reductions) == (homes == "replicas")
    _, expected = jobs.plain(unused, 2, jobs.adam)
    for own in ranks.run(2, jobs.train_with_decay, unused, plan.dump(), 2):
        for name, parameter in own.items():
            torch.testing.assert_close(parameter, expected[name], rtol=1e-4, atol=1e-6)
            assert name != "head.idle" or torch.equal(parameter, torch.ones(3))

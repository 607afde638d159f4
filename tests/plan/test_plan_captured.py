"""From an ordinary module to a checked plan: capture, profile, plan."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from plait.cost.costs import Source
from plait.cost.profile import profile
from plait.cost.table import TableCosts
from plait.model.capture import capture
from plait.plan.search import plan
from plait.plan.simulate import check

Make = Callable[..., Any]


class _Tower(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(depth)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class _Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _Tower(4), _Tower(6)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        scores = self.one(a) @ self.two(b).T
        return {"loss": nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))}


def test_a_captured_and_profiled_model_is_planned_for_devices_like_this_one(make_cluster: Make) -> None:
    batch = {"a": torch.randn(4, 32), "b": torch.randn(4, 32)}
    captured = capture(_Towers().train(), batch)
    table = profile(captured, batch, [4, 8], global_batch=32, repeats=1, warmup=1)
    text = make_cluster([0.5, 0.25], sites=2).dump().replace("like: unit", "like: local")
    cluster = type(make_cluster([1.0])).parse(text)
    found = plan(captured.graph, cluster, TableCosts(captured.graph, table), global_batch=32, every_device=True)
    check(found)
    assert found.model.fingerprint == captured.graph.fingerprint
    assert found.predicted
    assert found.predicted.sources == {Source.SCALED: 1.0}
    parameters = sum(s.parameter_bytes * len(s.replicas) for s in found.stages)
    assert parameters >= sum(p.numel() * 4 for p in captured.model.parameters())

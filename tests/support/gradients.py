"""Gradients of one step: of a model by itself, and of a plan of it run by ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from plait.model.by_hand import Branches
from plait.model.casting import cast_inputs, cast_weights, running
from plait.model.graph import BranchGraph
from plait.model.precision import Precision
from plait.plan.plan import Plan
from plait.runtime.engine import Engine
from support import partitions
from support.jobs import Maker, loss_of
from support.pool import Pool


class Keep(torch.optim.SGD):
    """Changes nothing and keeps the gradients that it is stepped with."""

    def __init__(self, named: Any) -> None:
        self.named = dict(named)
        self.found: dict[str, Tensor] = {}
        super().__init__(self.named.values(), lr=0.0)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.found = {n: p.grad.clone() for n, p in self.named.items() if p.grad is not None}


def of_plan(
    rank: int, make: Maker, plan_text: str, describe: Callable[[nn.Module], Branches] | None = None
) -> tuple[float, dict[str, Tensor]]:
    """This rank's loss and gradients."""
    model, batch = make()
    branches = describe(model) if describe else None
    with Engine(model, Plan.parse(plan_text), optimizer=Keep, timeout=60, branches=branches) as engine:
        loss = engine.step(batch)
        return loss, engine.optimizer.found if isinstance(engine.optimizer, Keep) else {}


def in_micro_batches(
    make: Maker,
    sizes: Sequence[int],
    precision: Precision,
    counts: Callable[[Mapping[str, Tensor]], float] | None = None,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and fp32 gradients of an ordinary loop over micro-batches, each weighted by its samples or ``counts``."""
    model, batch = make()
    cast_weights(precision, model)
    splits = {n: torch.split(t, list(sizes)) for n, t in batch.items()}
    parts = [{n: s[i] for n, s in splits.items()} for i in range(len(sizes))]
    weights = [float(counts(part)) if counts else float(n) for part, n in zip(parts, sizes, strict=True)]
    total, sums = 0.0, {n: torch.zeros(p.shape) for n, p in model.named_parameters() if p.requires_grad}
    for part, weight in zip(parts, weights, strict=True):
        with running(precision, torch.device("cpu")):
            loss = loss_of(model, cast_inputs(precision, part))
        torch.autograd.backward(loss, torch.full_like(loss, weight / sum(weights)))
        total += loss.item() * weight / sum(weights)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                sums[name] += parameter.grad
                parameter.grad = None
    return total, sums


def of_model(make: Maker) -> tuple[float, dict[str, Tensor]]:
    """The unpartitioned model's loss and gradients."""
    model, batch = make()
    loss = loss_of(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def error(found: Sequence[tuple[float, Mapping[str, Tensor]]], expected: tuple[float, Mapping[str, Tensor]]) -> float:
    """The largest difference of a gradient, or of the loss, as a share of what plan invariance allows.

    At most 1 is right: max|Δ| ≤ 1e-5·max|ref| + 1e-8 for each tensor. The second summand grows with the largest
    gradient of the model: one that is zero in exact arithmetic, as an attention key's bias, is rounding noise.
    """
    noise = 1e-8 * max(1.0, *(float(g.abs().max()) for g in expected[1].values()))
    worst = max(abs(loss - expected[0]) / (1e-5 * abs(expected[0]) + 1e-8) for loss, _ in found)
    seen: set[str] = set()
    for _, gradients in found:
        for name, gradient in gradients.items():
            reference = expected[1].get(name, torch.zeros_like(gradient))
            allowed = 1e-5 * float(reference.abs().max()) + noise
            worst = max(worst, float((gradient - reference).abs().max()) / allowed)
            seen.add(name)
    missing = [n for n, g in expected[1].items() if n not in seen and float(g.abs().max()) > noise]
    return float("inf") if missing else worst


def run(
    ranks: Pool, make: Maker, plan: Plan, describe: Callable[[nn.Module], Branches] | None = None
) -> list[tuple[float, dict[str, Tensor]]]:
    """Each rank's loss and gradients under ``plan``, of a model that ``describe`` tells by hand if it is given."""
    found: list[tuple[float, dict[str, Tensor]]] = ranks.run(len(plan.devices), of_plan, make, plan.dump(), describe)
    return found


def errors(ranks: Pool, make: Maker, graph: BranchGraph) -> Iterator[tuple[str, float]]:
    """(way, error) of each of the three ways over three ranks."""
    expected = of_model(make)
    for way, homes in partitions.WAYS.items():
        plan = partitions.plan_by(graph, 3, homes(graph, 3))
        yield way, error(run(ranks, make, plan), expected)

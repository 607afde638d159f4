"""What the pool's ranks do. Importable by name, so that it can be sent to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plait.plan.plan import Plan
from plait.runtime.engine import Engine

Maker = Callable[[], tuple[nn.Module, Mapping[str, Tensor]]]
"""Makes the model, with the same weights each time, and the global batch."""


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def train(
    rank: int,
    make: Maker,
    plan_text: str,
    steps: int = 3,
    *,
    optimizer: Any = sgd,
    load: str = "",
    save: str = "",
    options: Mapping[str, Any] | None = None,
) -> tuple[list[float], dict[str, Tensor], Any]:
    """Losses, this rank's parameters and the timeline of the last step."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=optimizer, timeout=30, **(options or {})) as engine:
        if load:
            engine.load_checkpoint(load)
        losses = [engine.step(batch) for _ in range(steps)]
        if save:
            engine.save_checkpoint(Path(save))
        own = {name: p.detach().clone() for name, p in engine.parameters.items()}
        return losses, own, engine.timeline()


def plain(make: Maker, steps: int = 3, optimizer: Any = sgd) -> tuple[list[float], dict[str, Tensor]]:
    """The same by an ordinary loop in one process."""
    model, batch = make()
    made = optimizer(list(model.named_parameters()))
    losses = []
    for _ in range(steps):
        loss = loss_of(model, batch)
        made.zero_grad()
        loss.backward()
        made.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    kwargs: dict[str, Any] = dict(batch)
    if type(model).__name__ == "CLIPModel":
        kwargs["return_loss"] = True
    result = model(**kwargs)
    found: Tensor = result if isinstance(result, Tensor) else result["loss"]
    return found

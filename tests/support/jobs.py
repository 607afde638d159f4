"""What the pool's ranks do. Importable by name, so that it can be sent to them."""

import inspect
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from plait.model.deferred import deferred
from plait.plan.groups import GroupRule
from plait.plan.plan import Plan
from plait.runtime.batch import Portion
from plait.runtime.engine import Engine
from plait.runtime.groups import NamedParameters, parameter_groups

Maker = Callable[[], tuple[nn.Module, Mapping[str, Tensor]]]
"""Makes the model, with the same weights each time, and the global batch."""


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def cosine(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)


def train(
    rank: int,
    make: Maker,
    plan_text: str,
    steps: int = 3,
    save: str = "",
    load: str = "",
    max_norm: float | None = None,
) -> tuple[list[float], dict[str, Tensor], Any]:
    """Losses, this rank's parameters and the timeline of the last step."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, timeout=30, max_grad_norm=max_norm) as engine:
        losses = _run(engine, batch, steps, save, load)
        return losses, _own(engine), engine.timeline()


def train_on_portions(
    rank: int, make: Maker, plan_text: str, steps: int = 2
) -> tuple[list[float], dict[str, Tensor], list[int]]:
    """Losses, this rank's parameters, and the samples that it was given: those that it reads."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, timeout=30) as engine:
        count = len(next(iter(batch.values())))
        positions = list(engine.positions(count))
        given = Portion(count, positions, {n: t[positions] for n, t in batch.items()})
        losses = [engine.step(given) for _ in range(steps)]
        return losses, _own(engine), positions


def train_with_schedule(
    rank: int, make: Maker, plan_text: str, steps: int, save: str = "", load: str = ""
) -> tuple[list[float], list[float]]:
    """Losses and final learning rates, with Adam and a learning-rate schedule."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=adam, scheduler=cosine, timeout=30) as engine:
        losses = _run(engine, batch, steps, save, load)
        groups = engine.optimizer.param_groups if engine.optimizer else []
        return losses, [group["lr"] for group in groups]


def train_with_decay(rank: int, make: Maker, plan_text: str, steps: int) -> dict[str, Tensor]:
    """This rank's parameters after steps of AdamW, which decays weights."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=adam, timeout=30) as engine:
        _run(engine, batch, steps, "", "")
        return _own(engine)


def grouped(parameters: NamedParameters) -> torch.optim.Optimizer:
    """No decay on biases and norms; another rate for one branch."""
    rules = [
        GroupRule(names=("*.bias", "*norm*"), options={"weight_decay": 0.0}),
        GroupRule(branches=("vision_model",), options={"lr": 3e-3}),
    ]
    return torch.optim.AdamW(parameter_groups(parameters, rules), lr=1e-3, weight_decay=0.5)


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.02, 0.02, 0.01, 0.01], total_steps=6)


def train_in_groups(
    rank: int, make: Maker, plan_text: str, steps: int, save: str = "", load: str = ""
) -> tuple[list[float], list[dict[str, Any]]]:
    """Losses, and the options of each group after the last step."""
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=grouped, scheduler=one_cycle, timeout=30) as engine:
        losses = _run(engine, batch, steps, save, load)
        groups = engine.optimizer.param_groups if engine.optimizer else []
        return losses, [{k: v for k, v in group.items() if k != "params"} for group in groups]


def plain_in_groups(make: Maker, steps: int) -> list[float]:
    """The losses of an ordinary loop with the same groups, written out."""
    model, batch = make()
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {(v, d): [] for v in (True, False) for d in (True, False)}
    for name, parameter in model.named_parameters():
        groups[name.startswith("vis"), not (name.endswith(".bias") or "norm" in name)].append(parameter)
    optimizer = torch.optim.AdamW(
        [{"params": params, "weight_decay": 0.5 if decays else 0.0} for (_, decays), params in groups.items()]
    )
    rates = [0.02 if vision else 0.01 for vision, _ in groups]
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=6)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


def _run(engine: Engine, batch: Mapping[str, Tensor], steps: int, save: str, load: str) -> list[float]:
    if load:
        engine.load_checkpoint(load)
    losses = [engine.step(batch) for _ in range(steps)]
    if save:
        engine.save_checkpoint(save)
    return losses


def _own(engine: Engine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine.parameters.items()}


def evaluate(rank: int, make: Maker, plan_text: str, sizes: Sequence[int]) -> dict[str, Any]:
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), timeout=30) as engine:
        batches = [{name: tensor[:size] for name, tensor in batch.items()} for size in sizes]
        return engine.evaluate(batches, outputs=("image_embeds", "text_embeds"))


def train_and_export(rank: int, make: Maker, plan_text: str, folder: str) -> dict[str, Tensor]:
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, timeout=30) as engine:
        engine.step(batch)
        engine.save_pretrained(Path(folder))
        return _own(engine)


def train_from_folder(
    rank: int, make: Maker, plan_text: str, folder: str
) -> tuple[list[float], dict[str, Tensor], None]:
    """The first loss of a model whose own weights were never made."""
    model = deferred(lambda: make()[0])
    assert all(p.is_meta for p in model.parameters())
    _, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, timeout=30, weights=folder) as engine:
        return [engine.step(batch)], _own(engine), None


def plain(
    make: Maker, steps: int = 3, optimizer: Any = sgd, max_norm: float | None = None
) -> tuple[list[float], dict[str, Tensor]]:
    """The same by an ordinary loop in one process."""
    model, batch = make()
    made = optimizer(list(model.named_parameters()))
    losses = []
    for _ in range(steps):
        loss = loss_of(model, batch)
        made.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        made.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    inner: nn.Module = getattr(model, "get_base_model", lambda: model)()  # beneath adapters
    switches = {"return_loss": True} if "return_loss" in inspect.signature(inner.forward).parameters else {}
    result = model(**batch, **switches)
    found: Tensor = result if isinstance(result, Tensor) else result["loss"]
    return found


def train_on_another_host(rank: int, make: Maker, plan_text: str) -> None:
    """As if each rank were on a machine of its own."""
    name, socket.gethostname = socket.gethostname, lambda: f"host-{rank}"
    try:
        train(rank, make, plan_text, 1)
    finally:
        socket.gethostname = name

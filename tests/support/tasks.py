"""A model whose tasks alternate, and texts of several lengths; what ranks do with them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.plan.lengths import Lengths
from plait.plan.plan import Plan
from plait.runtime.engine import Engine
from support import models
from support.jobs import sgd


class Alternating(nn.Module):
    """A shared trunk with an image task and a text task; each batch is for one of them. One head is tied to words."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Linear(12, width)
        self.words = nn.Embedding(20, width)
        self.trunk = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.classes = nn.Linear(width, 5)

    def forward(
        self,
        image: Tensor | None = None,
        label: Tensor | None = None,
        text: Tensor | None = None,
        following: Tensor | None = None,
    ) -> dict[str, Tensor]:
        hidden = self.patches(image) if text is None else self.words(text)
        for layer in self.trunk:
            hidden = hidden + torch.tanh(layer(hidden))
        if text is None:
            assert label is not None
            return {"loss": functional.cross_entropy(self.classes(hidden.mean(1)), label)}
        assert following is not None
        logits = hidden @ self.words.weight.T
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), following.flatten())}


def alternating() -> tuple[nn.Module, dict[str, dict[str, Tensor]]]:
    torch.manual_seed(4)
    image = {"image": torch.randn(8, 6, 12), "label": torch.randint(5, (8,))}
    text = {"text": torch.randint(20, (8, 7)), "following": torch.randint(20, (8, 7))}
    return Alternating(), {"image": image, "text": text}


TURNS = ("image", "text", "text", "image")


def take_turns(rank: int, plans: Mapping[str, str], save: str = "") -> tuple[list[float], dict[str, Tensor]]:
    model, batches = alternating()
    with Engine(model, {n: Plan.parse(p) for n, p in plans.items()}, optimizer=sgd, timeout=30) as engine:
        losses = [engine.step(batches[turn]) for turn in TURNS]
        if save:
            engine.save_pretrained(save)
        return losses, {n: p.detach().clone() for n, p in engine.parameters.items()}


def take_turns_alone() -> tuple[list[float], dict[str, Tensor]]:
    model, batches = alternating()
    optimizer = sgd(list(model.named_parameters()))
    losses = []
    for turn in TURNS:
        optimizer.zero_grad()
        loss = model(**batches[turn])["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: p.detach() for n, p in model.named_parameters()}


def texts(lengths: Sequence[int]) -> list[dict[str, Tensor]]:
    """Batches of GPT-2's, cut to these lengths."""
    _, batch = models.gpt2()
    return [{name: tensor[:, :length] for name, tensor in batch.items()} for length in lengths]


def of_lengths(
    rank: int, plan: str, lengths: Sequence[int], options: Mapping[str, Any], sizes: Sequence[int] = ()
) -> tuple[list[float], dict[str, Tensor]]:
    """Trains on batches of several lengths (and numbers of samples)."""
    model, _ = models.gpt2()
    counts = sizes or [models.SAMPLES] * len(lengths)
    batches = [{n: t[:count] for n, t in b.items()} for b, count in zip(texts(lengths), counts, strict=True)]
    with Engine(model, Plan.parse(plan), optimizer=sgd, timeout=30, lengths=Lengths(**options)) as engine:
        losses = [engine.step(batch) for batch in batches]
        losses.append(engine.evaluate(batches[:1])["loss"])
        losses.append(engine.step(batches[0]))  # in training mode again, under the form of the first
        return losses, {n: p.detach().clone() for n, p in engine.parameters.items()}


def of_lengths_alone(lengths: Sequence[int], sizes: Sequence[int] = ()) -> tuple[list[float], dict[str, Tensor]]:
    model, _ = models.gpt2()
    counts = sizes or [models.SAMPLES] * len(lengths)
    batches = [{n: t[:count] for n, t in b.items()} for b, count in zip(texts(lengths), counts, strict=True)]
    optimizer = sgd(list(model.named_parameters()))
    losses = [_step(model, optimizer, batch) for batch in batches]
    model.eval()
    losses.append(model(**batches[0]).loss.item())
    model.train()
    losses.append(_step(model, optimizer, batches[0]))
    return losses, {n: p.detach() for n, p in model.named_parameters()}


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, Tensor]) -> float:
    optimizer.zero_grad()
    loss: Tensor = model(**batch).loss
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()

"""A two-tower recommender: who might like what, from embedding tables."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example


class Recommender(nn.Module):
    """A user's tower and an item's, each over embedding tables; every other item of the batch is a negative."""

    def __init__(self, width: int, layers: int, users: int, items: int, categories: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.history = nn.EmbeddingBag(items, width, mode="mean", padding_idx=0)
        self.user_tower = nn.ModuleList(nn.Linear(2 * width, 2 * width) for _ in range(layers))
        self.item = nn.Embedding(items, width)
        self.category = nn.Embedding(categories, width)
        self.item_tower = nn.ModuleList(nn.Linear(2 * width, 2 * width) for _ in range(layers))
        self.temperature = 0.1

    def forward(self, user: Tensor, history: Tensor, item: Tensor, category: Tensor) -> dict[str, Tensor]:
        """In-batch softmax loss; ``user``, ``item`` and ``category`` one number a sample, ``history`` several."""
        who = torch.cat([self.user(user), self.history(history)], dim=-1)
        what = torch.cat([self.item(item), self.category(category)], dim=-1)
        for layer in self.user_tower:
            who = torch.relu(layer(who))
        for layer in self.item_tower:
            what = torch.relu(layer(what))
        who, what = functional.normalize(who, dim=-1), functional.normalize(what, dim=-1)
        scores = who @ what.T / self.temperature
        return {"loss": functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))}


def recommender(
    *, width: int = 16, layers: int = 3, users: int = 40, items: int = 60, samples: int = 4
) -> Example:  # fmt: skip
    """Recommender with a batch; a 0 in the history is no item."""
    batch = {
        "user": torch.randint(0, users, (samples,)),
        "history": torch.randint(0, items, (samples, 5)),
        "item": torch.randint(1, items, (samples,)),
        "category": torch.randint(0, 7, (samples,)),
    }
    return Recommender(width, layers, users, items, categories=7), batch

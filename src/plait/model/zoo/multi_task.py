"""A model for several tasks with one trunk, as Uni-Perceiver: tasks alternate, or are trained together."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.zoo.example import Example

TASKS = ("classify", "caption", "match")
"""The tasks that ``multi_task`` makes batches for; their inputs tell them apart."""


class MultiTask(nn.Module):
    """Images, words and pairs of both through one trunk. A batch's inputs say what is asked; losses are summed.

    ``image`` and ``label``: what is in it. ``text`` and ``following``: the next words. ``picture`` and ``caption``:
    which caption of the batch belongs to which picture.
    """

    def __init__(self, width: int, layers: int, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Linear(12, width)
        self.words = nn.Embedding(vocabulary, width)
        self.trunk = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.classes = nn.Linear(width, classes)
        self.next_word = nn.Linear(width, vocabulary)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def _through(self, hidden: Tensor) -> Tensor:
        for layer in self.trunk:
            hidden = layer(hidden)
        return hidden

    def _caption(self, text: Tensor, following: Tensor) -> Tensor:
        logits = self.next_word(self._through(self.words(text)))
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten())

    def _match(self, picture: Tensor, caption: Tensor) -> Tensor:
        one = functional.normalize(self._through(self.patches(picture)).mean(1), dim=-1)
        two = functional.normalize(self._through(self.words(caption)).mean(1), dim=-1)
        scores = one @ two.T * self.scale.exp()
        return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss over all tasks that ``batch`` has inputs for, and the classes' scores if they are asked for.

        Images are ``samples × patches × 12``.
        """
        losses, found = [], {}
        if "image" in batch:
            found["scores"] = self.classes(self._through(self.patches(batch["image"])).mean(1))
            losses.append(functional.cross_entropy(found["scores"], batch["label"]))
        if "text" in batch:
            losses.append(0.5 * self._caption(batch["text"], batch["following"]))
        if "picture" in batch:
            losses.append(self._match(batch["picture"], batch["caption"]))
        return {"loss": sum(losses[1:], losses[0]), **found}


def multi_task(
    *, width: int = 16, layers: int = 2, words: int = 6, vocabulary: int = 30, samples: int = 4,
    tasks: tuple[str, ...] = TASKS,
) -> Example:  # fmt: skip
    """MultiTask with a batch for ``tasks``: for one, or for several together."""
    ids = torch.randint(0, vocabulary, (samples, words + 1))
    inputs = {
        "classify": {"image": torch.randn(samples, 4, 12), "label": torch.randint(0, 5, (samples,))},
        "caption": {"text": ids[:, :-1], "following": ids[:, 1:].clone()},
        "match": {"picture": torch.randn(samples, 4, 12), "caption": torch.randint(0, vocabulary, (samples, words))},
    }
    return MultiTask(width, layers, vocabulary, classes=5), {n: t for task in tasks for n, t in inputs[task].items()}

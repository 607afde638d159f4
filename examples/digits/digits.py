"""Handwritten digits with captions: the data, and how good a model trained on it is.

scikit-learn's 1,797 images of 8×8 pixels (from UCI's "Optical Recognition of Handwritten Digits"), drawn twice as
large. Each is paired with a sentence about its digit. A fifth of the images, always the same, is held out.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEMPLATES = (
    "a handwritten {name}",
    "the digit {figure}",
    "a photo of the number {figure}",
    "this is a {name}",
    "somebody wrote the number {name}",
    "{figure} in pen",
)
PAD, BEGIN, END = 0, 1, 3
"""Their places in the vocabulary. Not 2 for END: transformers reads that as an old kind of CLIP model."""
WORDS = (
    "<pad>", "<begin>", "<unused>", "<end>",
    *dict.fromkeys(w for t in TEMPLATES for n, name in enumerate(NAMES) for w in t.format(name=name, figure=n).split()),
)  # fmt: skip
LENGTH = 8
"""Tokens of a caption, with its begin and end."""
HELD_OUT = 0.2


class Digits:
    """The data set as plait asks for it: the global batch of any step, and the held-out batches.

    A batch holds ``pixel_values`` (samples, 1, 16, 16), ``input_ids`` and ``attention_mask`` (samples, 8); a
    held-out batch ``labels`` (samples,) too.
    """

    def __init__(self, *, batch: int, seed: int = 0, shift: int = 1) -> None:
        images, labels = _load()
        kept = torch.from_numpy(np.random.default_rng(1797).permutation(len(labels)))
        first = round(HELD_OUT * len(labels))
        self._held, self._trained = kept[:first], kept[first:]
        self._images, self._labels = images, labels
        self._captions = torch.tensor([[_tokens(t, n) for t in TEMPLATES] for n in range(len(NAMES))])
        self._batch, self._seed, self._shift = batch, seed, shift

    def batch(self, step: int) -> dict[str, Tensor]:
        """The global batch of a step: the same in every process and every run, so a run can be resumed."""
        chance = np.random.default_rng([self._seed, step])
        chosen = self._trained[torch.from_numpy(chance.permutation(len(self._trained))[: self._batch])]
        template = torch.from_numpy(chance.integers(len(TEMPLATES), size=len(chosen)))
        moves = chance.integers(-self._shift, self._shift + 1, size=(len(chosen), 2))
        images = torch.stack(
            [_moved(self._images[i], *m) for i, m in zip(chosen.tolist(), moves.tolist(), strict=True)]
        )
        return _batch(images, self._captions[self._labels[chosen], template])

    def held_out(self) -> Iterator[dict[str, Tensor]]:
        """Batches of the held-out images; the images of each digit meet every caption in turn."""
        labels = self._labels[self._held]
        order = torch.stack([(labels[:i] == label).sum() for i, label in enumerate(labels)])
        captions = self._captions[labels, order % len(TEMPLATES)]
        for start in range(0, len(labels), self._batch):
            part = slice(start, start + self._batch)
            yield _batch(self._images[self._held[part]], captions[part]) | {"labels": labels[part]}


def zero_shot_accuracy(outputs: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> float:
    """Share of the images that are nearest to their own digit's captions (averaged over the templates).

    Args:
        outputs: ``image_embeds`` and ``text_embeds`` (samples, features), of length 1.
        inputs: the held-out batches joined: ``input_ids`` tells which captions are the same, ``labels`` the digit.
    """
    texts, labels = outputs["text_embeds"].cpu(), inputs["labels"]
    classes = []
    for label in range(len(NAMES)):
        rows = torch.nonzero(labels == label).flatten()
        _, first = np.unique(inputs["input_ids"][rows].numpy(), axis=0, return_index=True)
        classes.append(functional.normalize(texts[rows[torch.from_numpy(first)]].mean(0), dim=0))
    nearest = (outputs["image_embeds"].cpu() @ torch.stack(classes).T).argmax(1)
    return float((nearest == labels).double().mean())


def _load() -> tuple[Tensor, Tensor]:
    """Images (1797, 1, 16, 16) around 0, and labels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    large = functional.interpolate(small, size=(16, 16), mode="bilinear", align_corners=False)
    return large, torch.tensor(found.target)


def _moved(image: Tensor, down: int, right: int) -> Tensor:
    return torch.roll(image, (down, right), dims=(1, 2))


def _tokens(template: str, number: int) -> list[int]:
    words = template.format(name=NAMES[number], figure=number).split()
    tokens = [BEGIN, *(WORDS.index(word) for word in words), END]
    return tokens + [PAD] * (LENGTH - len(tokens))


def _batch(images: Tensor, captions: Tensor) -> dict[str, Tensor]:
    return {"pixel_values": images, "input_ids": captions, "attention_mask": (captions != PAD).long()}

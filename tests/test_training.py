"""What a run does beside its steps."""

from collections.abc import Iterator
from threading import Event

import torch

from plait.model.streams import undisturbed
from plait.training import Ahead, Turn

WAIT = 0.3
"""Seconds that each thread gives the other one to come between, where it can."""


def test_batches_made_ahead_and_the_layers_that_run_meanwhile_do_not_take_each_others_random_numbers() -> None:
    seeded, inside, drawn = Event(), Event(), Event()

    def batches() -> Iterator[Turn]:
        torch.manual_seed(1)
        seeded.set()
        inside.wait(WAIT)
        numbers = torch.rand(4)
        drawn.set()
        yield Turn("", {"x": numbers}, {})

    with Ahead(batches(), 1) as ahead:
        assert seeded.wait(30)
        with undisturbed():
            torch.default_generator.manual_seed(2)
            inside.set()
            drawn.wait(WAIT)
            own = torch.rand(4)
        turn = ahead.take()
    for seed, found in ((1, turn.batch["x"]), (2, own)):  # type: ignore[index]
        assert torch.equal(found, torch.rand(4, generator=torch.Generator().manual_seed(seed)))

"""Random streams keyed by step, micro-batch and layer, so that dropout does not depend on the plan."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_GENERATORS = threading.RLock()
"""Random generators are the process's, not a thread's: torch's, numpy's and Python's own."""


@contextlib.contextmanager
def generators_held() -> Iterator[None]:
    """No other thread that asks for them seeds, draws from or looks at the process's random generators meanwhile.

    A layer's dropout and the batches that are made while it runs would else take each other's numbers.
    """
    with _GENERATORS:
        yield


@dataclass(frozen=True, slots=True)
class Stream:
    """The random numbers of one micro-batch in one step; the same ones again when a stage is recomputed."""

    seed: int
    step: int
    micro_batch: int

    def seed_layer(self, layer: int) -> None:
        """Seed the default generators (CPU and current CUDA device) for the layer at this position in the graph."""
        text = f"{self.seed}/{self.step}/{self.micro_batch}/{layer}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
        torch.default_generator.manual_seed(number)
        if _cuda_in_use():
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the caller's random states (CPU and current CUDA device) at the end; no other thread draws meanwhile."""
    devices = [torch.cuda.current_device()] if _cuda_in_use() else []
    with generators_held(), torch.random.fork_rng(devices=devices):
        yield


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

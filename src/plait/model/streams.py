"""Random streams keyed by step, micro-batch and layer, so that dropout does not depend on the plan."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch


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
    """Restores the caller's random states (CPU and current CUDA device) at the end."""
    devices = [torch.cuda.current_device()] if _cuda_in_use() else []
    with torch.random.fork_rng(devices=devices):
        yield


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_available() and torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

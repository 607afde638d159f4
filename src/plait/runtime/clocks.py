"""Clocks: each rank's offset to rank 0's, so that all timelines share one time."""

import time

import torch
import torch.distributed as dist

ROUNDS = 20


def now() -> float:
    """Seconds of this process's monotonic clock."""
    return time.perf_counter()


def offset_to_first(rank: int, ranks: int, device: torch.device) -> float:
    """Seconds to add to ``now()`` to get rank 0's clock.

    Rank 0 answers each rank in turn; the answer of the shortest round trip is taken as made in its middle
    (Cristian, Probabilistic clock synchronization, 1989).
    """
    offset = 0.0
    for peer in range(1, ranks):
        if rank == 0:
            _answer(peer, device)
        elif rank == peer:
            offset = _ask(device)
    return offset


def _answer(peer: int, device: torch.device) -> None:
    buffer = torch.zeros(1, dtype=torch.float64, device=device)
    for _ in range(ROUNDS):
        dist.recv(buffer, peer)
        dist.send(torch.tensor([now()], dtype=torch.float64, device=device), peer)


def _ask(device: torch.device) -> float:
    buffer = torch.zeros(1, dtype=torch.float64, device=device)
    best, offset = float("inf"), 0.0
    for _ in range(ROUNDS):
        sent = now()
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
        received = now()
        if received - sent < best:
            best, offset = received - sent, float(buffer) - (sent + received) / 2
    return offset

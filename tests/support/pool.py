"""A pool of processes that act as ranks. Starting one costs seconds, so a session's tests reuse them."""

import contextlib
import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RankError(Exception):
    """A rank's job raised; the message holds each rank's traceback."""


class Pool:
    """``run`` calls a function on the first ``ranks`` processes, joined in a process group of their own."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs,), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, ranks: int, job: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
        """Each rank's result of ``job(rank, *args)``."""
        port = free_port()
        for rank in range(ranks):
            self._pipes[rank].send_bytes(pickle.dumps((rank, ranks, port, job, args)))
        answers = []
        for rank in range(ranks):
            if not self._pipes[rank].poll(timeout):
                raise RankError(f"rank {rank} gave no answer within {timeout} s")
            answers.append(pickle.loads(self._pipes[rank].recv_bytes()))  # noqa: S301
        failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        if failures:
            raise RankError("\n".join(failures))
        return [result for _, result in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send_bytes(b"")
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def _work(pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    while task := pipe.recv_bytes():
        try:
            rank, ranks, port, job, args = pickle.loads(task)  # noqa: S301
            answer = True, _one(rank, ranks, port, job, args)
        except BaseException:
            answer = False, traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))


def _one(rank: int, ranks: int, port: int, job: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    import torch.distributed as dist

    os.environ.pop("RANK", None)
    if ranks > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
        )
    try:
        return job(rank, *args)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

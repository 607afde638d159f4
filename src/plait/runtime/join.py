"""Joining the other processes: torchrun's variables, the backend, and checks that all are what the plan needs."""

import os
import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from plait.errors import RunError


def join(ranks: int, device: torch.device, timeout: float) -> int:
    """This process's rank among ``ranks``; torch.distributed is initialised where it isn't.

    A plan of one rank runs without torchrun. Raises RunError where torchrun started another number of processes.
    """
    if ranks == 1 and not dist.is_initialized() and "RANK" not in os.environ:
        return 0
    if not dist.is_initialized():
        _initialise(ranks, device, timeout)
    world = dist.get_world_size()
    if world != ranks:
        raise RunError(
            f"the plan needs {ranks} ranks, but {world} processes were started: torchrun --nproc-per-node {ranks} "
            "on one machine, or --nnodes times --nproc-per-node on several"
        )
    return dist.get_rank()


def check_hosts(nodes: Sequence[str]) -> None:
    """Raise RunError if ranks that the plan puts on one node (``nodes[rank]``) run on several machines."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    first: dict[str, int] = {}
    for rank, node in enumerate(nodes):
        other = first.setdefault(node, rank)
        if hosts[rank] != hosts[other]:
            raise RunError(
                f"the plan puts ranks {other} and {rank} on node {node}, but they run on {hosts[other]} and "
                f"{hosts[rank]}: ranks are the plan's devices in order, so give --node-rank in the order of its nodes"
            )


def _initialise(ranks: int, device: torch.device, timeout: float) -> None:
    missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise RunError(
            f"the plan needs {ranks} ranks: start the script with torchrun --nproc-per-node {ranks} ({missing[0]} is "
            "not set)"
        )
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise RunError(f"could not join the other processes at {where}: {str(error).splitlines()[0]}") from None


def own_device(device: str | torch.device | None) -> torch.device:
    """The device of this process: what is asked for, else its own CUDA device, else the CPU."""
    if device is not None:
        return torch.device(device)
    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    return torch.device("cpu")

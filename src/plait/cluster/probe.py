"""This machine as a Cluster: its CUDA devices, or its CPU cores as devices of type ``local``."""

import os
import re
import socket
from collections.abc import Sequence

from plait.cluster import catalog
from plait.cluster.spec import Cluster, DeviceCount, DeviceType, Node, Site
from plait.errors import ClusterError

LOCAL = "local"
"""The type that a profile made on this machine's CPU prices."""
CORE = "cpu-core"


def probe(*, devices: str = "auto") -> Cluster:
    """The cluster of one site and one node that this machine is.

    ``devices`` is ``cuda``, ``cpu`` or ``auto``: CUDA where there is any. Memory is what the devices have
    in fact; CPU cores share the machine's. Raises ClusterError where ``cuda`` is asked for and absent.
    """
    if devices not in ("auto", "cpu", "cuda"):
        raise ClusterError(f"devices: {devices!r} must be auto, cpu or cuda")
    found = [] if devices == "cpu" else _cuda_devices()
    if devices == "cuda" and not found:
        raise ClusterError("devices: cuda is asked for, but PyTorch sees no CUDA device here")
    types, counts = _of_cuda(found) if found else _of_cores()
    name = _host()
    node = Node(name=name, devices=counts)
    return Cluster(name=name, device_types=types, sites=(Site(name="here", nodes=(node,)),))


def _cuda_devices() -> list[tuple[str, float]]:
    """(driver's name, bytes of memory) of each CUDA device; none where torch is not installed."""
    try:
        import torch
    except ModuleNotFoundError:
        return []
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(i) for i in range(count)]
    return [(p.name, float(p.total_memory)) for p in properties]


def _of_cuda(found: Sequence[tuple[str, float]]) -> tuple[dict[str, DeviceType], tuple[DeviceCount, ...]]:
    """One type per kind of device: like the catalog's where it is known there, else like itself."""
    types: dict[str, DeviceType] = {}
    counts: list[DeviceCount] = []
    for driver_name, memory in found:
        like = catalog.by_driver_name(driver_name)
        name = f"{like}-here"
        kept = types.get(name)
        types[name] = DeviceType(like=like, memory=min(memory, kept.memory if kept else memory))
        if counts and counts[-1].type == name:
            counts[-1] = DeviceCount(type=name, count=counts[-1].count + 1)
        else:
            counts.append(DeviceCount(type=name))
    return types, tuple(counts)


def _of_cores() -> tuple[dict[str, DeviceType], tuple[DeviceCount, ...]]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {CORE: DeviceType(like=LOCAL, memory=machine_memory() / cores)}, (DeviceCount(type=CORE, count=cores),)


def machine_memory() -> float:
    """Bytes of the machine's memory, or of the control group's share where that is less."""
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = file.read().strip()
    except OSError:  # no control groups here: nothing is shared out
        return installed
    return installed if limit == "max" else min(installed, float(limit))


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname().split(".")[0]).strip("-._") or "node"

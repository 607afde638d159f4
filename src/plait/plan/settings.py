"""The settings that the planner tries: shapes of the devices, micro-batches, directions of the branches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from plait.cluster.spec import Cluster
from plait.errors import PlanError
from plait.model.graph import BranchGraph
from plait.plan.orders import Shape, device_sets, opposing, orders, pipelines, replicated
from plait.plan.schedules import NAMES
from plait.plan.strands import Setting

MOST_DEVICES = 64
OVERLAPS = (0.0, 0.75)
"""Shares of the messages' time taken to hide behind compute; the simulator tells which cuts were right."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan must do, and what its choice is limited to."""

    global_batch: int
    micro_batch: int | None = None
    schedule: str | None = None
    every_device: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """A shape of the devices and the branches that run up it."""

    shape: Shape
    up: frozenset[str]


def check_request(request: Request, cluster: Cluster) -> None:
    """Raise PlanError where the request contradicts itself or asks for what is not known."""
    if request.global_batch < 1:
        raise PlanError(f"global_batch: {request.global_batch} must be at least 1")
    if request.micro_batch is not None and not 1 <= request.micro_batch <= request.global_batch:
        raise PlanError(
            f"micro_batch: {request.micro_batch} must be between 1 and the global batch, {request.global_batch}"
        )
    if request.schedule is not None and request.schedule.replace("-", "_") not in NAMES:
        raise PlanError(f"schedule: {request.schedule!r} is not known; it can be {', '.join(NAMES)}")
    if len(cluster.devices) > MOST_DEVICES:
        raise PlanError(f"{len(cluster.devices)} devices: this planner searches among at most {MOST_DEVICES}")


def splits(request: Request) -> list[tuple[int, ...]]:
    """Samples of each micro-batch, for each number of micro-batches to try, fewest first."""
    if request.micro_batch is not None:
        whole, rest = divmod(request.global_batch, request.micro_batch)
        return [(request.micro_batch,) * whole + ((rest,) if rest else ())]
    counts = [2**k for k in range(7) if 2**k <= request.global_batch]
    return [_even(request.global_batch, count) for count in counts]


def _even(samples: int, count: int) -> tuple[int, ...]:
    each, more = divmod(samples, count)
    return (each + 1,) * more + (each,) * (count - more)


def ways(graph: BranchGraph, cluster: Cluster, request: Request) -> list[Way]:
    """Every shape that suits the request, with no branch running up it, or every other one."""
    branches = list(graph.branches)
    found = []
    for shape in _shapes(cluster, request):
        found.append(Way(shape, frozenset()))
        if len(shape.slots) > 1 and not shape.chimera and len(branches) > 1:
            found.append(Way(shape, frozenset(branches[1::2])))
    return found


def _shapes(cluster: Cluster, request: Request) -> Iterator[Shape]:
    sets = device_sets(cluster)[:1] if request.every_device else device_sets(cluster)
    for devices in sets:
        several = len(devices) > 1
        found = orders(devices)
        if request.schedule != "chimera":
            yield from (pipelines(order) for order in found)
            yield from (shape for order in found[:4] if several for shape in replicated(order))
        if request.schedule in (None, "chimera") and several and not len(devices) % 2:
            yield from (opposing(order) for order in found[:4])


def settings_of(way: Way, sizes: tuple[int, ...], overlap: float, *, recompute: bool) -> Setting | None:
    """The setting of a way with these micro-batches; None where there are too few of them for the replicas."""
    shares = _shares(way.shape, sizes)
    return None if shares is None else Setting(way.shape, shares, sizes, way.up, recompute, overlap)


def _shares(shape: Shape, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Micro-batches of each replica, in proportion to its speed; of Chimera's two, half each."""
    count, replicas = len(sizes), shape.replicas
    if count < replicas or (shape.chimera and count % 2):
        return None
    given = [count // 2] * 2 if shape.chimera else _by_speed(shape, count)
    starts = [sum(given[:g]) for g in range(replicas)]
    return tuple(tuple(range(a, a + n)) for a, n in zip(starts, given, strict=True))


def _by_speed(shape: Shape, count: int) -> list[int]:
    """How many of ``count`` micro-batches each replica runs: at least one, the next where it is done first."""
    speed = [min(slot[g].speed for slot in shape.slots) for g in range(shape.replicas)]  # cuts are common to all
    given = [1] * shape.replicas
    for _ in range(count - shape.replicas):
        given[min(range(shape.replicas), key=lambda g: (given[g] + 1) / speed[g])] += 1
    return given

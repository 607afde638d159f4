"""What links cost: seconds for n bytes point to point and for the collectives that reductions use."""

from collections.abc import Sequence
from itertools import permutations

from plait.cluster.spec import Cluster, Device, Link


def message_seconds(link: Link, nbytes: float) -> float:
    """Seconds from hand-over to delivery of a message of ``nbytes`` over an idle link."""
    return link.latency + nbytes / link.bandwidth


def transfer_seconds(cluster: Cluster, source: Device, target: Device, nbytes: float) -> float:
    """Seconds of a message between two devices, none within one; raises ClusterError where no link joins them."""
    return 0.0 if source.name == target.name else message_seconds(cluster.link(source, target), nbytes)


def slowest_link(cluster: Cluster, devices: Sequence[Device]) -> Link:
    """The least bandwidth and the greatest latency between any two of ``devices`` (at least two)."""
    links = [cluster.link(a, b) for a, b in permutations(devices, 2)]
    return Link(bandwidth=min(k.bandwidth for k in links), latency=max(k.latency for k in links))


def all_reduce_seconds(link: Link, ranks: int, nbytes: float) -> float:
    """Seconds of a ring all-reduce: ``2 (n - 1)`` rounds, each of an n-th of the bytes."""
    if ranks < 2:
        return 0.0
    return 2 * (ranks - 1) * message_seconds(link, nbytes / ranks)


def all_gather_seconds(link: Link, ranks: int, nbytes: float) -> float:
    """Seconds of a ring all-gather that leaves ``nbytes`` on every rank; a reduce-scatter costs the same."""
    if ranks < 2:
        return 0.0
    return (ranks - 1) * message_seconds(link, nbytes / ranks)


def broadcast_seconds(link: Link, ranks: int, nbytes: float) -> float:
    """Seconds of a broadcast down a binary tree."""
    return (ranks - 1).bit_length() * message_seconds(link, nbytes) if ranks > 1 else 0.0

"""The shapes that a plan's devices can take: in which order they form a pipeline, and with how many replicas."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, permutations, product

from plait.cluster.spec import Cluster, Device

MANY = 24
"""Orders kept at each level (devices of a node, nodes of a site, sites); beyond, only typical ones are tried."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Slots of a pipeline; each holds one device per replica. One slot alone is plain data parallelism."""

    slots: tuple[tuple[Device, ...], ...]
    chimera: bool = False
    """Two replicas that run in opposite directions over the same devices."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Each device once, in the order of ranks."""
        if self.chimera:
            return tuple(slot[0] for slot in self.slots)
        return tuple(d for slot in self.slots for d in slot)

    @property
    def replicas(self) -> int:
        """How many devices a slot has."""
        return len(self.slots[0])


def pipelines(order: Sequence[Device]) -> Shape:
    """One device per slot."""
    return Shape(tuple((d,) for d in order))


def replicated(order: Sequence[Device]) -> Iterator[Shape]:
    """All devices data-parallel; and, for an even number from four, two pipelines: neighbours paired, or halves."""
    if len(order) > 1:
        yield Shape((tuple(order),))
    if len(order) >= 4 and not len(order) % 2:
        half = len(order) // 2
        yield Shape(tuple(zip(order[::2], order[1::2], strict=True)))
        yield Shape(tuple(zip(order[:half], order[half:], strict=True)))


def opposing(order: Sequence[Device]) -> Shape:
    """Chimera's: slot s on the s-th device and on the s-th from the end."""
    return Shape(tuple(zip(order, reversed(order), strict=True)), chimera=True)


def device_sets(cluster: Cluster) -> list[tuple[Device, ...]]:
    """Sets of devices worth a plan of their own: all, those of each site, and the fastest of each kind alone."""
    found = [cluster.devices]
    if len(cluster.sites) > 1:
        found += [tuple(d for d in cluster.devices if d.site == site.name) for site in cluster.sites]
    fastest: dict[str, Device] = {}
    for device in cluster.devices:
        known = fastest.setdefault(device.like, device)
        if device.speed > known.speed:
            fastest[device.like] = device
    return list(dict.fromkeys([*found, *((d,) for d in fastest.values())]))


def orders(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Orders of ``devices`` that keep sites together, and nodes in them; alike devices are not told apart."""
    sites = []
    for _, inside in groupby(devices, key=lambda d: d.site):
        nodes = [_within(list(node)) for _, node in groupby(inside, key=lambda d: d.node)]
        sites.append(_arranged(nodes))
    return _arranged(sites)


def _arranged(parts: Sequence[Sequence[tuple[Device, ...]]]) -> list[tuple[Device, ...]]:
    """Every order of the parts, each in each of its own orders; alike ones once."""
    ways = (
        tuple(d for part in chosen for d in part)
        for arrangement in permutations(parts)
        for chosen in product(*arrangement)
    )
    return _distinct(islice(ways, 100 * MANY))


def _within(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Orders of a node's devices: all of few, else by speed: rising, falling, highest or lowest in the middle."""
    if len(devices) <= 4:
        return _distinct(permutations(devices))
    rising = sorted(devices, key=lambda d: (d.like, d.speed))
    hill = [*rising[::2], *rising[1::2][::-1]]
    valley = [*rising[::-1][::2], *rising[::-1][1::2][::-1]]
    return _distinct(tuple(way) for way in (devices, rising, rising[::-1], hill, valley))


def _distinct(ways: Iterator[tuple[Device, ...]]) -> list[tuple[Device, ...]]:
    """One of each kind, at most ``MANY``."""
    kinds: dict[tuple[tuple[str, str], ...], tuple[Device, ...]] = {}
    for way in ways:
        kinds.setdefault(tuple((d.type, d.node) for d in way), way)
        if len(kinds) == MANY:
            break
    return list(kinds.values())

"""Cluster: sites, nodes, devices and the links between them, read from ``cluster.yaml``."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import permutations
from typing import Annotated

from pydantic import Field, model_validator

from plait.cluster import catalog
from plait.errors import ClusterError
from plait.files import FileValue, Value
from plait.units import Bytes, FlopRate, Rate, Seconds

PositiveSpeed = Annotated[float, Field(gt=0, le=1e6)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""Letters, digits, ``_ . -``: names become parts of device names (site/node/number)."""

MOST_DEVICES = 100_000
"""A cluster with more is taken for a slip of the keyboard."""


class Link(Value):
    """A way between two devices. A message of n bytes takes ``latency + n / bandwidth`` seconds."""

    bandwidth: Rate
    latency: Seconds = 0.0

    @model_validator(mode="after")
    def _check(self) -> "Link":
        if self.bandwidth <= 0:
            raise ValueError("bandwidth: must be more than zero; leave the link out if there is none")
        return self


class SiteLink(Link):
    """A link between two sites, the same both ways."""

    between: tuple[str, str]


class DeviceType(Value):
    """A device type beside the catalog's: ``speed`` times as fast as ``like``, which profiles or the catalog name."""

    like: Annotated[str, Field(min_length=1)]
    """A type of a profile (``local`` is this machine), of the catalog, or another of ``device_types``."""
    speed: PositiveSpeed = 1.0
    memory: Bytes
    flops: FlopRate | None = None
    """Peak rate of matrix work, where known."""

    @model_validator(mode="after")
    def _check(self) -> "DeviceType":
        if self.memory <= 0:
            raise ValueError("memory: must be more than zero")
        if self.flops == 0:
            raise ValueError("flops: must be more than zero; leave it out where it isn't known")
        known = catalog.spelling_of(self.like)
        if known and known != self.like:
            raise ValueError(f"like: unknown device type {self.like!r}; the catalog spells it {known!r}")
        return self


class DeviceCount(Value):
    """``count`` devices of one type in a node."""

    type: str
    count: Annotated[int, Field(gt=0, le=MOST_DEVICES)] = 1


class Node(Value):
    """A machine: its devices and the link between any two of them."""

    name: Name
    devices: tuple[DeviceCount, ...] = Field(min_length=1)
    link: Link = Link(bandwidth=25e9, latency=10e-6)


class Site(Value):
    """A place: nodes joined by a network."""

    name: Name
    nodes: tuple[Node, ...] = Field(min_length=1)
    link: Link = Link(bandwidth=1.25e9, latency=50e-6)
    """Between two nodes of this site."""


class Device(Value):
    """One device: where it stands and what it is. ``name`` is site/node/number."""

    name: str
    site: str
    node: str
    type: str
    like: str
    """The type whose costs are measured or modelled."""
    speed: float
    """How many times as fast as ``like``."""
    memory: Bytes


class Cluster(FileValue, kind="plait-cluster/1"):
    """Sites, their nodes and devices, and the links between sites."""

    format: str = "plait-cluster/1"
    name: str = "cluster"
    device_types: dict[str, DeviceType] = Field(default_factory=dict)
    sites: tuple[Site, ...] = Field(min_length=1)
    links: tuple[SiteLink, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> "Cluster":
        names = [s.name for s in self.sites]
        _refuse_twice("sites", names)
        _refuse_twice("nodes", [n.name for s in self.sites for n in s.nodes])
        for name, own in self.device_types.items():
            self._check_like(name, own)
        for site, node, count in self._counts():
            self._check_type(f"sites.{site.name}.nodes.{node.name}.devices", count.type)
        total = sum(count.count for _, _, count in self._counts())
        if total > MOST_DEVICES:
            raise ValueError(f"sites: {total} devices altogether; at most {MOST_DEVICES} are possible")
        self._check_links(names)
        return self

    def _counts(self) -> Iterator[tuple[Site, Node, DeviceCount]]:
        for site in self.sites:
            for node in site.nodes:
                yield from ((site, node, count) for count in node.devices)

    def _check_like(self, name: str, own: DeviceType) -> None:
        seen = [name]
        while own.like in self.device_types and own.like != seen[-1]:
            if own.like in seen:
                raise ValueError(f"device_types.{name}.like: a circle: {' → '.join([*seen, own.like])}")
            seen.append(own.like)
            own = self.device_types[own.like]

    def _check_type(self, where: str, name: str) -> None:
        if name not in self.device_types and name not in catalog.DEVICES:
            spelling = catalog.spelling_of(name)
            hint = f" (is {spelling!r} meant?)" if spelling else ""
            known = ", ".join([*self.device_types, *sorted(catalog.DEVICES)])
            raise ValueError(
                f"{where}: unknown device type {name!r}{hint}; known: {known}; or describe it in device_types"
            )

    def _check_links(self, names: Sequence[str]) -> None:
        for index, link in enumerate(self.links):
            if set(link.between) - set(names) or link.between[0] == link.between[1]:
                raise ValueError(f"links.{index}.between: {list(link.between)} must be two of the sites {list(names)}")
        _refuse_twice("links", [" and ".join(sorted(link.between)) for link in self.links])
        reached = {names[0]} | {b for a, b in self._routes if a == names[0]}
        apart = [n for n in names if n not in reached]
        if apart:
            raise ValueError(f"links: no way from site {names[0]} to {', '.join(apart)}; add a link between them")

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """Every device, in the order of the file: the order of ranks unless a plan says otherwise."""
        return tuple(self._expand())

    def _expand(self) -> Iterator[Device]:
        for site in self.sites:
            for node in site.nodes:
                types = [count.type for count in node.devices for _ in range(count.count)]
                for index, name in enumerate(types):
                    yield self._device(site.name, node.name, index, name)

    def _device(self, site: str, node: str, index: int, name: str) -> Device:
        own = self.device_types.get(name)
        like, speed = self._measured_as(name)
        memory = own.memory if own else catalog.DEVICES[name].memory
        path = f"{site}/{node}/{index}"
        return Device(name=path, site=site, node=node, type=name, like=like, speed=speed, memory=memory)

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """Devices by name."""
        return {d.name: d for d in self.devices}

    def _measured_as(self, name: str) -> tuple[str, float]:
        """The type that profiles or the catalog know, and how many times as fast ``name`` is."""
        speed, own = 1.0, self.device_types.get(name)
        while own:
            speed *= own.speed
            name, own = own.like, self.device_types.get(own.like) if own.like != name else None
        return name, speed

    @cached_property
    def _routes(self) -> dict[tuple[str, str], Link]:
        """Between any two sites the direct link or, where there is none, the way of least latency over others."""
        routes: dict[tuple[str, str], Link] = {}
        for link in self.links:
            a, b = link.between
            routes[a, b] = routes[b, a] = Link(bandwidth=link.bandwidth, latency=link.latency)
        direct = frozenset(routes)
        for over in (s.name for s in self.sites):
            around = [a for a, b in routes if b == over]
            for a, b in permutations(around, 2):
                way = _joined(routes[a, over], routes[over, b])
                known = routes.get((a, b))
                if (a, b) not in direct and (known is None or way.latency < known.latency):
                    routes[a, b] = way
        return routes

    @cached_property
    def _inner_links(self) -> dict[str, Link]:
        within_nodes = {f"{s.name}/{n.name}": n.link for s in self.sites for n in s.nodes}
        return within_nodes | {s.name: s.link for s in self.sites}

    def link(self, a: Device, b: Device) -> Link:
        """The link between two devices, over other sites where theirs are not joined directly.

        Raises ClusterError where one is no device of this cluster.
        """
        if a.node == b.node:
            return self._inner_links[f"{a.site}/{a.node}"]
        if a.site == b.site:
            return self._inner_links[a.site]
        found = self._routes.get((a.site, b.site))
        if not found:
            raise ClusterError(f"cluster {self.name}: no way between {a.name} and {b.name}; are both its devices?")
        return found


def _joined(first: Link, second: Link) -> Link:
    return Link(bandwidth=min(first.bandwidth, second.bandwidth), latency=first.latency + second.latency)


def _refuse_twice(what: str, given: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in given:
        if name in seen:
            raise ValueError(f"{what}: {name} stands twice; each must stand once")
        seen.add(name)

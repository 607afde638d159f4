"""Cluster: sites, nodes, devices and the links between them, read from ``cluster.yaml``."""

from collections.abc import Iterator
from functools import cached_property
from typing import Annotated

from pydantic import Field, model_validator

from plait.cluster import catalog
from plait.errors import ClusterError
from plait.files import FileValue, Value
from plait.units import Bytes, FlopRate, Rate, Seconds

PositiveSpeed = Annotated[float, Field(gt=0, le=1e6)]


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

    like: str
    speed: PositiveSpeed = 1.0
    memory: Bytes
    flops: FlopRate | None = None
    """Peak rate of matrix work, where known."""


class DeviceCount(Value):
    """``count`` devices of one type in a node."""

    type: str
    count: Annotated[int, Field(gt=0, le=100_000)] = 1


class Node(Value):
    """A machine: its devices and the link between any two of them."""

    name: str
    devices: tuple[DeviceCount, ...] = Field(min_length=1)
    link: Link = Link(bandwidth=25e9, latency=10e-6)
    address: str = ""
    """Host name or address, for launching."""


class Site(Value):
    """A place: nodes joined by a network."""

    name: str
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
        nodes = [n.name for s in self.sites for n in s.nodes]
        for what, given in (("sites", names), ("nodes", nodes)):
            twice = sorted({n for n in given if given.count(n) > 1})
            if twice:
                raise ValueError(f"{what}: {', '.join(twice)} stands twice; names must differ")
        for index, link in enumerate(self.links):
            unknown = [s for s in link.between if s not in names]
            if unknown or link.between[0] == link.between[1]:
                raise ValueError(f"links.{index}.between: {list(link.between)} must be two of the sites {names}")
        for site in self.sites:
            for node in site.nodes:
                for count in node.devices:
                    self._check_type(f"sites.{site.name}.nodes.{node.name}.devices", count.type)
        return self

    def _check_type(self, where: str, name: str) -> None:
        if name not in self.device_types and name not in catalog.DEVICES:
            known = ", ".join([*self.device_types, *sorted(catalog.DEVICES)])
            raise ValueError(f"{where}: unknown device type {name!r}; known: {known}; or describe it in device_types")

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
        like, speed = (own.like, own.speed) if own else (name, 1.0)
        memory = own.memory if own else catalog.DEVICES[name].memory
        path = f"{site}/{node}/{index}"
        return Device(name=path, site=site, node=node, type=name, like=like, speed=speed, memory=memory)

    @cached_property
    def by_name(self) -> dict[str, Device]:
        """Devices by name."""
        return {d.name: d for d in self.devices}

    @cached_property
    def _site_links(self) -> dict[frozenset[str], SiteLink]:
        return {frozenset(link.between): link for link in self.links}

    @cached_property
    def _inner_links(self) -> dict[str, Link]:
        within_nodes = {f"{s.name}/{n.name}": n.link for s in self.sites for n in s.nodes}
        return within_nodes | {s.name: s.link for s in self.sites}

    def link(self, a: Device, b: Device) -> Link:
        """The link between two devices; raises ClusterError where their sites are not joined."""
        if a.node == b.node:
            return self._inner_links[f"{a.site}/{a.node}"]
        if a.site == b.site:
            return self._inner_links[a.site]
        found = self._site_links.get(frozenset((a.site, b.site)))
        if not found:
            raise ClusterError(f"cluster {self.name}: no link between the sites {a.site} and {b.site}; add it to links")
        return found

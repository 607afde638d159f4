"""Graphs, clusters and costs for the tests of planning."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from plait.cluster.spec import Cluster, Device
from plait.cost.costs import LayerCost, Source
from plait.model.graph import BranchGraph, Layer, Loss, Parameter, Scope, TensorSpec

WIDTH = 16


def _tower(branch: str, depth: int, previous: str | None = None) -> list[Layer]:
    layers = []
    for index in range(depth):
        name = f"{branch}.{index}"
        layers.append(
            Layer(
                name=name,
                branch=branch,
                inputs=() if index or previous else (f"{branch}_in",),
                reads=(previous,) if previous else (),
                writes=(f"{name}.out",),
                parameters=(Parameter(name=f"{name}.weight", shape=(WIDTH, WIDTH), dtype="float32"),),
                flops=2.0 * WIDTH * WIDTH,
                signature=f"{branch}-layer",
            )
        )
        previous = f"{name}.out"
    return layers


def _two_towers(depths: dict[str, int], scope: Scope = Scope.BATCH) -> BranchGraph:
    """Towers side by side and a loss over their ends."""
    layers = [layer for branch, depth in depths.items() for layer in _tower(branch, depth)]
    ends = tuple(f"{branch}.{depth - 1}.out" for branch, depth in depths.items())
    layer_scope: Literal[Scope.MICROBATCH, Scope.BATCH] = Scope.BATCH if scope is Scope.BATCH else Scope.MICROBATCH
    layers.append(
        Layer(name="loss", branch="join", scope=layer_scope, reads=ends, writes=("loss.out",), signature="loss")
    )
    flowing = TensorSpec(shape=(1, WIDTH), dtype="float32", gradient=True)
    values = {v: flowing for layer in layers for v in layer.writes}
    values["loss.out"] = TensorSpec(shape=(), dtype="float32", batch_dim=None, gradient=True)
    return BranchGraph(
        model="TwoTowers",
        inputs={f"{b}_in": TensorSpec(shape=(1, WIDTH), dtype="float32") for b in depths},
        values=values,
        layers=tuple(layers),
        losses=(Loss(value="loss.out", scope=scope),),
    )


@pytest.fixture(scope="session")
def two_towers() -> Callable[..., BranchGraph]:
    """Makes graphs of towers joined by a loss: ``two_towers({"image": 4, "text": 6})``."""
    return _two_towers


def _cluster(speeds: Sequence[float], *, memory: float = 2.0**30, sites: int = 1, mbit: float = 200) -> Cluster:
    """Devices of these speeds, spread evenly over sites with one node each."""
    types = {f"d{i}": {"like": "unit", "speed": s, "memory": memory} for i, s in enumerate(speeds)}
    per_site = -(-len(speeds) // sites)
    return Cluster.model_validate(
        {
            "format": "plait-cluster/1",
            "device_types": types,
            "sites": [
                {
                    "name": f"s{site}",
                    "nodes": [
                        {
                            "name": f"n{site}",
                            "devices": [{"type": t} for t in list(types)[site * per_site : (site + 1) * per_site]],
                        }
                    ],
                }
                for site in range(sites)
            ],
            "links": [
                {"between": (f"s{a}", f"s{b}"), "bandwidth": mbit * 125e3, "latency": 1e-3}
                for a in range(sites)
                for b in range(a + 1, sites)
            ],
        }
    )


@pytest.fixture(scope="session")
def make_cluster() -> Callable[..., Cluster]:
    """Makes clusters of devices with given speeds."""
    return _cluster


@dataclass(frozen=True)
class UnitCosts:
    """Every layer takes ``seconds`` per sample on a device of speed 1; backward twice that."""

    seconds: float = 1e-3
    held: float = 1e3
    overhead: float = 0.0

    def layer(self, layer: str, device: Device, samples: int, tensor_parallel: int = 1) -> LayerCost:
        time = (self.overhead + self.seconds * samples) / device.speed * (0.1 if layer == "loss" else 1.0)
        return LayerCost(time, time, time, self.held * samples, Source.SCALED)

    def step_seconds(self, parameter_bytes: float, device: Device) -> float:
        return parameter_bytes * 1e-9 / device.speed


@pytest.fixture(scope="session")
def unit_costs() -> Callable[..., UnitCosts]:
    """Makes costs under which every layer takes as long as the next."""
    return UnitCosts

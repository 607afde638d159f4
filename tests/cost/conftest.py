"""A graph and devices for the tests of costs."""

from collections.abc import Callable

import pytest

from plait.cluster.spec import Device
from plait.model.graph import BranchGraph, Layer, Parameter, TensorSpec


def _layer(name: str, branch: str, reads: tuple[str, ...], writes: str, trainable: bool = True) -> Layer:
    weight = Parameter(name=f"{name}.w", shape=(1000, 1000), dtype="float32", trainable=trainable)
    return Layer(
        name=name,
        branch=branch,
        inputs=() if reads else ("x",),
        reads=reads,
        writes=(writes,),
        parameters=(weight,),
        flops=2e6,
        signature="linear" if trainable else "frozen",
    )


@pytest.fixture(scope="session")
def graph() -> BranchGraph:
    """Three linear layers of 1000 × 1000; the first and the last of one signature, the second frozen."""
    flowing = TensorSpec(shape=(1, 1000), dtype="float32", gradient=True)
    return BranchGraph(
        model="Linears",
        inputs={"x": TensorSpec(shape=(1, 1000), dtype="float32")},
        values={"a": flowing, "b": flowing, "c": flowing},
        layers=(
            _layer("one", "m", (), "a"),
            _layer("two", "m", ("a",), "b", trainable=False),
            _layer("three", "m", ("b",), "c"),
        ),
    )


@pytest.fixture(scope="session")
def make_device() -> Callable[..., Device]:
    """Makes devices: ``make_device("local", speed=0.5)``."""

    def make(like: str, *, kind: str | None = None, speed: float = 1.0) -> Device:
        return Device(name="s/n/0", site="s", node="n", type=kind or like, like=like, speed=speed, memory=2.0**30)

    return make

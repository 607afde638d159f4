"""Device types that plait knows: datasheet figures, each with its source."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """Peak dense matrix rates in FLOP/s, memory in bytes, memory bandwidth in bytes/s; ``source`` is the datasheet."""

    fp32: float
    half: float
    memory: float
    bandwidth: float
    source: str


DEVICES: dict[str, DeviceSheet] = {}

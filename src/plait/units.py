"""Quantities as text ("25 Gbit/s", "80 GiB", "5 ms") and as SI numbers (bytes/s, bytes, seconds, FLOP/s).

Text is read exactly as written on datasheets: ``k``, ``M``, ``G``, ``T`` are powers of 1000,
``Ki``, ``Mi``, ``Gi``, ``Ti`` powers of 1024, ``b`` and ``bit`` are bits, ``B`` bytes.
"""

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from plait.errors import UnitError

_PREFIXES = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_BYTES = {p + "B": f for p, f in _PREFIXES.items()}
_RATES = {p + "B/s": f for p, f in _PREFIXES.items()} | {
    p + b: f / 8 for p, f in _PREFIXES.items() for b in ("bit/s", "b/s", "bps")
}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_FLOPS = {p + f: s for p, s in _PREFIXES.items() for f in ("FLOP/s", "FLOPS", "FLOPs")}

_QUANTITY = re.compile(r"\s*([-+]?[\d._]+(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def _parse(text: str | float, units: dict[str, float], what: str, example: str) -> float:
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise UnitError(f"{text!r} is not {what}; write it like {example!r}")
    if not isinstance(text, str):
        if text == 0:
            return 0.0
        raise UnitError(f"{text!r} has no unit; {what} is written like {example!r}")
    match = _QUANTITY.fullmatch(text)
    if not match or match.group(2) not in units:
        known = ", ".join(sorted(units, key=lambda u: (units[u], u)))
        raise UnitError(f"{text!r} is not {what}; write it like {example!r} (units: {known})")
    try:
        value = float(match.group(1)) * units[match.group(2)]
    except ValueError:
        raise UnitError(f"{text!r} is not {what}; write it like {example!r}") from None
    if not math.isfinite(value) or value < 0:
        raise UnitError(f"{text!r} must be a finite number that is not negative")
    return value


def _format(value: float, steps: list[tuple[str, float]], units: dict[str, float]) -> str:
    if value == 0:
        return f"0 {_base(units)}"
    unit = next((u for u, f in steps if abs(value) >= f), steps[-1][0])
    for digits in (4, 6, 9, 12, 15, 17):
        text = f"{value / units[unit]:.{digits}g} {unit}"
        match = _QUANTITY.fullmatch(text)
        if match and float(match.group(1)) * units[unit] == value:
            return text
    return f"{value!r} {_base(units)}"


def _base(units: dict[str, float]) -> str:
    """The unit whose factor is 1: any number can be written in it without loss."""
    return next(u for u, f in units.items() if f == 1.0)


def parse_bytes(text: str | float) -> float:
    """Bytes of "80 GiB"; raises UnitError."""
    return _parse(text, _BYTES, "a size", "80 GiB")


def parse_rate(text: str | float) -> float:
    """Bytes per second of "25 Gbit/s"; raises UnitError."""
    return _parse(text, _RATES, "a bandwidth", "25 Gbit/s")


def parse_seconds(text: str | float) -> float:
    """Seconds of "5 ms"; raises UnitError."""
    return _parse(text, _TIMES, "a duration", "5 ms")


def parse_flops(text: str | float) -> float:
    """FLOP/s of "312 TFLOP/s"; raises UnitError."""
    return _parse(text, _FLOPS, "a computing rate", "312 TFLOP/s")


def format_bytes(value: float) -> str:
    """Exact text of a size: ``parse_bytes(format_bytes(x)) == x``."""
    return _format(value, [(u, _BYTES[u]) for u in ("GiB", "MiB", "KiB", "B")], _BYTES)


def format_rate(value: float) -> str:
    """Exact text of a bandwidth in bit/s: ``parse_rate(format_rate(x)) == x``."""
    return _format(value, [(u, _RATES[u]) for u in ("Gbit/s", "Mbit/s", "B/s")], _RATES)


def format_seconds(value: float) -> str:
    """Exact text of a duration: ``parse_seconds(format_seconds(x)) == x``."""
    return _format(value, [(u, _TIMES[u]) for u in ("s", "ms", "us", "ns")], _TIMES)


def format_flops(value: float) -> str:
    """Exact text of a computing rate: ``parse_flops(format_flops(x)) == x``."""
    steps = [(u, _FLOPS[u]) for u in ("TFLOP/s", "GFLOP/s", "FLOP/s")]
    return _format(value, steps, _FLOPS)


def show_bytes(value: float) -> str:
    """A size for people, three digits: "19.2 GiB"."""
    return _show(value, [("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1)])


def show_seconds(value: float) -> str:
    """A duration for people, three digits: "12.3 ms"."""
    return _show(value, [("s", 1), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)])


def show_rate(value: float) -> str:
    """A bandwidth for people, three digits: "200 Mbit/s"."""
    return _show(value * 8, [("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1)])


def _show(value: float, steps: list[tuple[str, float]]) -> str:
    if abs(value) < steps[-1][1] / 10:
        return f"0 {steps[0][0] if steps[0][1] == 1 else steps[-1][0]}"
    unit, factor = next(((u, f) for u, f in steps if abs(value) >= f), steps[-1])
    return f"{value / factor:.3g} {unit}"


def _quantity(parse: Callable[[Any], float], show: Callable[[float], str], example: str) -> Any:
    def read(value: Any, info: ValidationInfo) -> float:
        # Code gives SI numbers; a file must write the unit, so that nobody guesses.
        from_file = bool(info.context and info.context.get("from_file"))
        if not from_file and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        return parse(value)

    schema = {"type": "string", "examples": [example]}
    return [BeforeValidator(read), PlainSerializer(show, str), WithJsonSchema(schema)]


Bytes = Annotated[float, *_quantity(parse_bytes, format_bytes, "80 GiB")]
Rate = Annotated[float, *_quantity(parse_rate, format_rate, "25 Gbit/s")]
Seconds = Annotated[float, *_quantity(parse_seconds, format_seconds, "5 ms")]
FlopRate = Annotated[float, *_quantity(parse_flops, format_flops, "312 TFLOP/s")]

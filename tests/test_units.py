"""Quantities: text and SI numbers, without loss, and refused where they make no sense."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait import units
from plait.errors import UnitError

AMOUNTS = st.one_of(st.just(0.0), st.floats(1e-12, 1e20))
PAIRS = {
    "bytes": (units.parse_bytes, units.format_bytes),
    "rate": (units.parse_rate, units.format_rate),
    "seconds": (units.parse_seconds, units.format_seconds),
    "flops": (units.parse_flops, units.format_flops),
}


@pytest.mark.parametrize("kind", PAIRS)
@given(value=AMOUNTS)
def test_text_gives_exactly_the_number_back(kind: str, value: float) -> None:
    parse, show = PAIRS[kind]
    assert parse(show(value)) == value


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_rate, "25 Gbit/s", 25e9 / 8),
        (units.parse_rate, "200Mb/s", 200e6 / 8),
        (units.parse_rate, "10 GB/s", 10e9),
        (units.parse_bytes, "80 GiB", 80 * 2**30),
        (units.parse_bytes, "1.5 kB", 1500),
        (units.parse_seconds, "5 ms", 5e-3),
        (units.parse_seconds, "20 µs", 20e-6),
        (units.parse_flops, "312 TFLOP/s", 312e12),
        (units.parse_bytes, 0, 0),
    ],
)
def test_units_mean_what_datasheets_mean(parse: Callable[[str | float], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (units.parse_bytes, "80 GiBs", "not a size; write it like '80 GiB'"),
        (units.parse_bytes, "80", "not a size"),
        (units.parse_bytes, 80, "has no unit"),
        (units.parse_rate, "25 GiB", "not a bandwidth"),
        (units.parse_seconds, "-5 ms", "not negative"),
        (units.parse_seconds, "1e999 s", "finite"),
        (units.parse_seconds, "1.2.3 s", "not a duration"),
        (units.parse_seconds, True, "not a duration"),
        (units.parse_flops, [], "not a computing rate"),
    ],
)
def test_what_makes_no_sense_is_refused_with_an_example(
    parse: Callable[[object], float], text: object, words: str
) -> None:
    with pytest.raises(UnitError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.show_bytes(19.2 * 2**30), "19.2 GiB"),
        (units.show_seconds(0.01234), "12.3 ms"),
        (units.show_seconds(0.0), "0 s"),
        (units.show_rate(25e6), "200 Mbit/s"),
    ],
)
def test_people_see_three_digits(text: str, expected: str) -> None:
    assert text == expected

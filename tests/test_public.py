"""The public face: everything is there, and planning starts without torch."""

import subprocess
import sys

import pytest

import plait

WITHOUT_TORCH = [
    "plait",
    "plait.cli",
    "plait.plan.search",
    "plait.plan.simulate",
    "plait.coordinate.order",
    "plait.cost.combined",
    "plait.cost.roofline",
    "plait.report.html",
    "plait.job.job",
]


@pytest.mark.parametrize("name", plait.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(plait, name) is not None


def test_an_unknown_name_is_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="no attribute 'palit'"):
        plait.palit  # noqa: B018


def test_planning_loads_no_torch() -> None:
    code = f"import sys; {'; '.join(f'import {name}' for name in WITHOUT_TORCH)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"

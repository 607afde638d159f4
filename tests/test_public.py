"""The public face: everything is there, and planning starts without torch."""

import subprocess
import sys

import pytest

import plait
from plait.errors import PlanError
from support.plans import UnitCosts
from support.report_case import graph, make_case

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


def test_plan_and_simulate_are_functions_whatever_was_imported_before() -> None:
    import plait.plan.search
    import plait.simulate.simulate

    case = make_case()
    assert plait.simulate(case.plan).step_time == case.predicted.step_time  # type: ignore[operator]
    with pytest.raises(PlanError, match="global_batch"):
        plait.plan(graph(), case.plan.cluster, UnitCosts(), global_batch=0)  # type: ignore[operator]


def test_an_unknown_name_is_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="no attribute 'palit'"):
        plait.palit  # noqa: B018


def test_planning_loads_no_torch() -> None:
    code = f"import sys; {'; '.join(f'import {name}' for name in WITHOUT_TORCH)}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"

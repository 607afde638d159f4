"""Plans of tasks that alternate are brought to the same ranks."""

import pytest

from plait.errors import PlanError
from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph
from plait.plan.plan import Plan
from plait.plan.simulate import check, simulate
from plait.plan.tasks import on_same_ranks
from support.plans import plan_of


@pytest.fixture(scope="module")
def graph() -> BranchGraph:
    return capture(*zoo.multi_task(tasks=("match",))).graph


def planned(graph: BranchGraph, ranks: int, first: int, second: int) -> Plan:
    spread = {"patches": [first, second], "words": [second, first], "loss": [first]}
    return plan_of(graph, ranks, spread, "branch_aware", [2, 2])


def test_ranks_are_numbered_as_in_the_first_plan(graph: BranchGraph) -> None:
    other = capture(*zoo.multi_task(tasks=("classify",))).graph
    first = plan_of(other, 2, {next(iter(other.branches)): [0, 1]}, "branch_aware", [2, 2])
    second = planned(graph, 2, 0, 1)
    turned = second.model_copy(update={"devices": second.devices[::-1]})
    found = on_same_ranks({"one": first, "two": turned})["two"]
    assert found.devices == first.devices
    homes = {s.name: found.devices[s.replicas[0].rank] for s in found.stages}
    assert homes == {s.name: turned.devices[s.replicas[0].rank] for s in turned.stages}
    check(found)
    assert simulate(found).step_time == pytest.approx(simulate(turned).step_time)


def test_tasks_on_other_devices_are_refused(graph: BranchGraph) -> None:
    with pytest.raises(PlanError, match="task two: its devices are"):
        on_same_ranks({"one": planned(graph, 2, 0, 1), "two": planned(graph, 3, 0, 2)})

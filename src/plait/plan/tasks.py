"""Alternating tasks: several plans of one model on the same ranks, one for each set of inputs that a batch may have."""

from collections.abc import Mapping
from itertools import combinations
from typing import TypeVar

from plait.cost.links import all_reduce_seconds, slowest_link
from plait.errors import PlanError
from plait.model.graph import BranchGraph, Parameter
from plait.model.precision import Precision
from plait.plan.plan import Plan, ReductionPlan

T = TypeVar("T")


def together(plans: Mapping[str, Plan], graphs: Mapping[str, BranchGraph]) -> dict[str, Plan]:
    """The plans with reductions over all ranks that hold a parameter under any of them, for all must step it alike.

    Raises PlanError where they are not for the same ranks, or where a batch would not tell which one it is for.
    """
    check_tasks(plans)
    trained = {name: _trained(plan, graphs[name]) for name, plan in plans.items()}
    holders: dict[str, set[int]] = {}
    for found in trained.values():
        for parameter, ranks in found.items():
            holders.setdefault(parameter, set()).update(ranks)
    return {name: _widened(plan, graphs[name], trained[name], holders) for name, plan in plans.items()}


def on_same_ranks(plans: Mapping[str, Plan]) -> dict[str, Plan]:
    """The plans with their ranks numbered alike, as the first plan's devices are; raises PlanError where they can't."""
    devices = next(iter(plans.values())).devices
    found = {
        name: _numbered(plan, devices) if set(plan.devices) == set(devices) else plan for name, plan in plans.items()
    }
    check_tasks(found)
    return found


def _numbered(plan: Plan, devices: tuple[str, ...]) -> Plan:
    rank = {old: devices.index(name) for old, name in enumerate(plan.devices)}
    old = [plan.devices.index(name) for name in devices]
    stages = tuple(
        stage.model_copy(
            update={
                "replicas": tuple(r.model_copy(update={"rank": rank[r.rank]}) for r in stage.replicas),
                "prices": tuple(p.model_copy(update={"rank": rank[p.rank]}) for p in stage.prices),
            }
        )
        for stage in plan.stages
    )
    reductions = tuple(r.model_copy(update={"ranks": tuple(sorted(rank[x] for x in r.ranks))}) for r in plan.reductions)
    order, predicted = plan.schedule.order, plan.predicted
    return plan.model_copy(
        update={
            "devices": devices,
            "stages": stages,
            "reductions": reductions,
            "step_seconds": tuple(plan.step_seconds[r] for r in old) if plan.step_seconds else (),
            "schedule": plan.schedule.model_copy(update={"order": order and tuple(order[r] for r in old)}),
            "predicted": predicted
            and predicted.model_copy(update={"peak_memory": tuple(predicted.peak_memory[r] for r in old)}),
        }
    )


def check_tasks(plans: Mapping[str, Plan]) -> None:
    """Raise PlanError unless the plans are for the same ranks and tell each other apart by their inputs."""
    for (one, first), (two, second) in combinations(plans.items(), 2):
        if first.devices != second.devices:
            raise PlanError(
                f"task {two}: its devices are {', '.join(second.devices)}, those of {one} {', '.join(first.devices)}; "
                "tasks that alternate need the same, rank by rank"
            )
        if set(first.model.inputs) == set(second.model.inputs):
            raise PlanError(
                f"tasks {one} and {two}: both have the inputs {', '.join(first.model.inputs)}, so that no batch tells "
                "which it is for; give their inputs other names"
            )


def precision_of(plans: Mapping[str, Plan], asked: str | None) -> Precision:
    """The plans' one precision; raises PlanError where it is not what is asked for."""
    found = {name: plan.model.precision for name, plan in plans.items()}
    first = next(iter(found.values()))
    other = next((name for name, precision in found.items() if precision is not first), None)
    if other is not None:
        raise PlanError(f"task {other}: its precision is {found[other]}, another's {first}; they share their weights")
    if asked is not None and asked != first:
        raise PlanError(f"precision: {asked} is asked for, but the plan is for {first}; capture and plan for {asked}")
    return first


def for_task(given: T | Mapping[str, T | None] | None, task: str) -> T | None:
    """What is given for ``task``: the one thing for all, or its own by its name."""
    return given.get(task) if isinstance(given, Mapping) else given


def task_of(plans: Mapping[str, Plan], given: set[str]) -> str:
    """The task with the most inputs among those whose inputs are all ``given``; raises PlanError for none."""
    suited = [name for name, plan in plans.items() if set(plan.model.inputs) <= given]
    if not suited:
        wanted = "; ".join(f"{name}: {', '.join(plan.model.inputs)}" for name, plan in plans.items())
        raise PlanError(f"batch: it has {', '.join(sorted(given)) or 'nothing'}; the tasks need {wanted}")
    return max(suited, key=lambda name: len(plans[name].model.inputs))


def _trained(plan: Plan, graph: BranchGraph) -> dict[str, set[int]]:
    """Parameter → the ranks where it gets a gradient."""
    found: dict[str, set[int]] = {}
    for stage in plan.stages:
        for name, parameter in graph.parameters(stage.layers).items():
            if stage.backward and parameter.trainable:
                found.setdefault(name, set()).update(r.rank for r in stage.replicas)
    return found


def _widened(plan: Plan, graph: BranchGraph, trained: Mapping[str, set[int]], holders: Mapping[str, set[int]]) -> Plan:
    parameters = graph.parameters()
    groups: dict[tuple[int, ...], list[Parameter]] = {}
    for name in trained:
        ranks = tuple(sorted(holders[name]))
        if len(ranks) > 1:
            groups.setdefault(ranks, []).append(parameters[name])
    given = {r.ranks: r for r in plan.reductions}
    reductions = tuple(
        given[ranks] if ranks in given and set(given[ranks].parameters) == {p.name for p in group}
        else _reduction(plan, ranks, group)
        for ranks, group in sorted(groups.items())
    )  # fmt: skip
    return plan.model_copy(update={"reductions": reductions})


def _reduction(plan: Plan, ranks: tuple[int, ...], parameters: list[Parameter]) -> ReductionPlan:
    nbytes = sum(p.learning_nbytes for p in parameters)
    devices = [plan.cluster.by_name[plan.devices[r]] for r in ranks]
    link = slowest_link(plan.cluster, devices)
    return ReductionPlan(
        parameters=tuple(p.name for p in parameters),
        ranks=ranks,
        nbytes=nbytes,
        seconds=all_reduce_seconds(link, len(ranks), nbytes),
    )

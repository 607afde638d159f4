"""From the home of each layer to stages, and plans that keep the homes of another plan's layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plait.cost.costs import Costs
from plait.errors import PlanError
from plait.model.graph import BranchGraph, Layer, Scope
from plait.plan.assemble import StageChoice, assemble
from plait.plan.choices import MicroBatches
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.simulate import predict

Home = tuple[tuple[int, MicroBatches], ...]
"""The replicas of a layer: the rank of each, and the micro-batches that it runs there."""


@dataclass
class _Open:
    """A stage in the making."""

    branch: str
    scope: Scope
    home: Home
    layers: list[str] = field(default_factory=list)


def stages_of(graph: BranchGraph, homes: Mapping[str, Home], recompute: Sequence[str] = ()) -> list[StageChoice]:
    """The fewest stages: consecutive layers of a branch at the same home, unless that would make a cycle.

    ``recompute`` are branches.
    """
    stages: list[_Open] = []
    place: dict[str, int] = {}
    before: list[set[int]] = []
    for layer in graph.layers:
        made = {place[graph.producers[v]] for v in layer.reads}
        home = homes[layer.name]
        index = next((i for i, s in enumerate(stages) if _fits(s, layer, home) and not _later(i, made, before)), None)
        if index is None:
            index = len(stages)
            stages.append(_Open(layer.branch, layer.scope, home))
            before.append(set())
        stages[index].layers.append(layer.name)
        place[layer.name] = index
        before[index] |= made - {index}
    times = {s.branch: 0 for s in stages}
    found = []
    for stage in stages:
        name = f"{stage.branch}.{times[stage.branch]}"
        times[stage.branch] += 1
        found.append(StageChoice(name, tuple(stage.layers), stage.home, stage.branch in recompute))
    return found


def _fits(stage: _Open, layer: Layer, home: Home) -> bool:
    return (stage.branch, stage.scope, stage.home) == (layer.branch, layer.scope, home)


def _later(index: int, made: set[int], before: Sequence[set[int]]) -> bool:
    """Whether one of the stages ``made`` depends on stage ``index``, which would then depend on itself."""
    waiting, seen = [m for m in made if m != index], set[int]()
    while waiting:
        stage = waiting.pop()
        if stage == index:
            return True
        if stage not in seen:
            seen.add(stage)
            waiting += before[stage]
    return False


def plan_alongside(graph: BranchGraph, others: Sequence[tuple[Plan, BranchGraph]], costs: Costs) -> Plan:
    """A plan for another task of the model that ``others`` are plans of, on the same ranks.

    A layer whose weights are part of one of these goes where they are, so that they exist once; another one goes
    where what it reads is made, or to the rank that holds least. Micro-batches are those of the first plan.
    Raises PlanError as ``assemble`` and ``predict`` do.
    """
    if not others:
        raise PlanError("plan_alongside: there is no plan to go by")
    first = others[0][0]
    known = _parameter_homes(others)
    load = _load(others)
    homes: dict[str, Home] = {}
    for layer in graph.layers:
        homes[layer.name] = _one(layer, _home(graph, layer, homes, known, load))
    made = assemble(
        graph,
        first.cluster,
        first.devices,
        stages_of(graph, homes),
        first.micro_batches,
        SchedulePlan(name="branch_aware" if len(first.devices) > 1 else "sequential"),
        costs=costs,
    )
    return made.model_copy(update={"predicted": predict(made)})


def _parameter_homes(others: Sequence[tuple[Plan, BranchGraph]]) -> dict[str, Home]:
    """Parameter → the replicas that hold it, the first plan's where several do."""
    found: dict[str, Home] = {}
    for plan, graph in others:
        for stage in plan.stages:
            home: Home = tuple((r.rank, r.micro_batches) for r in stage.replicas)
            for name in graph.parameters(stage.layers):
                found.setdefault(name, home)
    return found


def _load(others: Sequence[tuple[Plan, BranchGraph]]) -> list[float]:
    """Bytes of parameters per rank."""
    load = [0.0] * len(others[0][0].devices)
    for plan, _ in others:
        for stage in plan.stages:
            for replica in stage.replicas:
                load[replica.rank] += stage.parameter_bytes
    return load


def _home(
    graph: BranchGraph, layer: Layer, homes: Mapping[str, Home], known: Mapping[str, Home], load: list[float]
) -> Home:
    held = [p for p in layer.parameters if p.name in known]
    if held:
        return known[max(held, key=lambda p: p.nbytes).name]
    if layer.reads:
        return homes[graph.producers[layer.reads[-1]]]
    rank = min(range(len(load)), key=lambda r: load[r])
    load[rank] += sum(p.nbytes for p in layer.parameters)
    return ((rank, "all"),)


def _one(layer: Layer, home: Home) -> Home:
    """A layer of batch scope has one replica, which runs all."""
    return ((home[0][0], "all"),) if layer.scope is Scope.BATCH else home

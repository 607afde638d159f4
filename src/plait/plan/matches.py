"""Whether a plan, perhaps edited by hand, says what its model needs: every layer, transfer and reduction."""

from collections.abc import Iterable, Sequence

from plait.errors import PlanError
from plait.model.graph import BranchGraph
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan


def check_matches(plan: Plan, graph: BranchGraph) -> None:
    """Raise PlanError, naming stage or transfer, where the plan lacks what follows from the model and its stages.

    What a plan says of stages (layers, ranks, micro-batches) is its choice; scopes, backwards, transfers and
    reductions follow from it, and one that is missing would give wrong gradients or none.
    """
    choices = [
        StageChoice(s.name, s.layers, tuple((r.rank, r.micro_batches) for r in s.replicas), s.recompute)
        for s in plan.stages
    ]
    derived = assemble(graph, plan.cluster, plan.devices, choices, plan.micro_batches, plan.schedule)
    _check_stages(plan, derived)
    _check_transfers(plan, derived)
    _check_reductions(plan, derived)


def _check_stages(plan: Plan, derived: Plan) -> None:
    needed = {stage.name: stage for stage in derived.stages}
    for stage in plan.stages:
        for field in ("branch", "scope", "backward"):
            given, right = getattr(stage, field), getattr(needed[stage.name], field)
            if given != right:
                raise PlanError(f"stages.{stage.name}.{field}: {_text(given)}, but its layers make it {_text(right)}")


def _check_transfers(plan: Plan, derived: Plan) -> None:
    given = {(t.source, t.target): (set(t.values), t.gradient) for t in plan.transfers}
    right = {(t.source, t.target): (set(t.values), t.gradient) for t in derived.transfers}
    for (source, target), (values, gradient) in right.items():
        found, back = given.get((source, target), (set(), gradient))
        if found != values:
            raise PlanError(
                f"transfers: {source} → {target} must carry {', '.join(sorted(values))}; it carries "
                f"{', '.join(sorted(found)) or 'nothing (it is missing)'}"
            )
        if back != gradient:
            raise PlanError(f"transfers: {source} → {target}: gradient must be {_text(gradient)}")
    extra = [ends for ends in given if ends not in right]
    if extra:
        raise PlanError(f"transfers: {extra[0][0]} → {extra[0][1]} is not needed: the target reads nothing from there")


def _check_reductions(plan: Plan, derived: Plan) -> None:
    given = _members((r.ranks, r.parameters) for r in plan.reductions)
    for ranks, parameters in _members((r.ranks, r.parameters) for r in derived.reductions).items():
        missing = sorted(parameters - given.get(ranks, set()))
        if missing:
            raise PlanError(
                f"reductions: the gradients of {missing[0]} ({len(missing)} parameters in all) must be summed over the "
                f"ranks {list(ranks)}, which all hold them"
            )


def _members(reductions: Iterable[tuple[Sequence[int], Sequence[str]]]) -> dict[tuple[int, ...], set[str]]:
    found: dict[tuple[int, ...], set[str]] = {}
    for ranks, parameters in reductions:
        found.setdefault(tuple(sorted(ranks)), set()).update(parameters)
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

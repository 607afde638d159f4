"""What a rank holds of a plan: its stages, their parameters, and which of these it answers for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.errors import PlanError
from plait.model.capture import Captured, retrace
from plait.model.stages import Stage, build_stage
from plait.model.traced import LossFunction
from plait.plan.matches import check_matches
from plait.plan.plan import Plan
from plait.runtime.weights import materialise


@dataclass(frozen=True)
class Parts:
    """Per plan the stages of one rank by their position in it, and its parameters by canonical name."""

    stages: tuple[Mapping[int, Stage], ...]
    parameters: Mapping[str, nn.Parameter]
    buffers: Mapping[str, Tensor]
    """Those that a checkpoint holds."""
    counted: frozenset[str]
    """Parameters and buffers of which this is the lowest rank."""
    owners: Mapping[str, int]
    """Every parameter and stored buffer of the model that some stage holds → its lowest rank."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters and stored buffers."""
        return {**self.parameters, **self.buffers}


def capture_for(model: nn.Module, plan: Plan, loss: LossFunction | None) -> Captured:
    """The model cut as the plan says; raises PlanError where the plan is for another model."""
    given = plan.model
    captured = retrace(model, given.inputs, given.losses, given.outputs, loss, given.mixing, given.precision)
    if captured.graph.fingerprint != given.fingerprint:
        raise PlanError(_difference(captured, plan))
    check_matches(plan, captured.graph)
    return captured


def _difference(captured: Captured, plan: Plan) -> str:
    planned = [name for stage in plan.stages for name in stage.layers]
    found = [layer.name for layer in captured.graph.layers]
    only_planned = [n for n in planned if n not in found]
    only_found = [n for n in found if n not in planned]
    hint = "the same layers, but of other sizes or inputs"
    if only_planned or only_found:
        hint = f"only the plan has {only_planned[:3]}, only the model {only_found[:3]}"
    return (
        f"the plan is for another model: {plan.model.name} {plan.model.fingerprint}, this is "
        f"{captured.graph.model} {captured.graph.fingerprint} ({hint}); plan again with plait plan"
    )


def parts_of(captured: Sequence[Captured], plans: Sequence[Plan], rank: int, device: torch.device) -> Parts:
    """The stages of several plans of one model that ``rank`` holds, on its device.

    Parameters on the meta device get (unfilled) memory.
    """
    model, canonical = captured[0].model, captured[0].canonical
    pairs = list(zip(captured, plans, strict=True))
    names = {n for c, p in pairs for n in c.graph.parameters(x for i in _own(p, rank) for x in p.stages[i].layers)}
    materialise(model, names, canonical, device)
    stages = tuple({i: build_stage(c, p.stages[i].layers) for i in _own(p, rank)} for c, p in pairs)
    together = [stage for own in stages for stage in own.values()]
    for stage in together:
        stage.to(device)
    stored = set(model.state_dict().keys())
    parameters = {n: p for s in together for n, p in s.named_parameters()}
    buffers = {n: t for s in together for n, t in s.named_buffers() if n in stored}
    owners: dict[str, int] = {}
    for one, plan in pairs:
        _add_owners(owners, one, plan, stored)
    counted = frozenset(n for n in (*parameters, *buffers) if owners.get(n) == rank)
    return Parts(stages, parameters, buffers, counted, owners)


def _own(plan: Plan, rank: int) -> list[int]:
    return [i for i, stage in enumerate(plan.stages) if any(r.rank == rank for r in stage.replicas)]


def _add_owners(owners: dict[str, int], captured: Captured, plan: Plan, stored: Collection[str]) -> None:
    for stage in plan.stages:
        lowest = min(r.rank for r in stage.replicas)
        names = [*captured.graph.parameters(stage.layers)]
        names += [b for layer in stage.layers for b in captured.graph.by_name[layer].buffers if b in stored]
        for name in names:
            owners[name] = min(owners.get(name, lowest), lowest)


def release_others(model: nn.Module, parts: Parts) -> None:
    """Free the memory of the model's parameters that this rank does not hold; their forms stay."""
    held = {id(p) for p in parts.parameters.values()}
    freed: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():  # noqa: SLF001
            if parameter is not None and id(parameter) not in held and not parameter.is_meta:
                if id(parameter) not in freed:
                    freed[id(parameter)] = nn.Parameter(
                        torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
                    )
                module._parameters[name] = freed[id(parameter)]  # noqa: SLF001

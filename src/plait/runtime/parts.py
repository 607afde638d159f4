"""What a rank holds of a plan: its stages, their parameters, and which of these it answers for."""

from collections.abc import Collection, Mapping
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
    """The stages of one rank by their position in the plan, and its parameters by canonical name."""

    captured: Captured
    stages: Mapping[int, Stage]
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
    captured = retrace(model, given.inputs, given.losses, given.outputs, loss, given.mixing)
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


def parts_of(captured: Captured, plan: Plan, rank: int, device: torch.device) -> Parts:
    """The stages that ``rank`` holds, on its device; parameters on the meta device get (unfilled) memory."""
    own = [i for i, stage in enumerate(plan.stages) if any(r.rank == rank for r in stage.replicas)]
    names = captured.graph.parameters(name for i in own for name in plan.stages[i].layers)
    materialise(captured.model, names, captured.canonical, device)
    stages = {i: build_stage(captured, plan.stages[i].layers) for i in own}
    for stage in stages.values():
        stage.to(device)
    parameters = {n: p for s in stages.values() for n, p in s.named_parameters()}
    stored = set(captured.model.state_dict().keys())
    buffers = {n: t for s in stages.values() for n, t in s.named_buffers() if n in stored}
    owners = _owners(captured, plan, stored)
    counted = frozenset(n for n in (*parameters, *buffers) if owners.get(n) == rank)
    return Parts(captured, stages, parameters, buffers, counted, owners)


def _owners(captured: Captured, plan: Plan, stored: Collection[str]) -> dict[str, int]:
    owners: dict[str, int] = {}
    for stage in plan.stages:
        lowest = min(r.rank for r in stage.replicas)
        names = [*captured.graph.parameters(stage.layers)]
        names += [b for layer in stage.layers for b in captured.graph.by_name[layer].buffers if b in stored]
        for name in names:
            owners[name] = min(owners.get(name, lowest), lowest)
    return owners


def release_others(model: nn.Module, parts: Parts) -> None:
    """Free the memory of the model's parameters that this rank does not hold."""
    held = {id(p) for p in parts.parameters.values()}
    for parameter in model.parameters():
        if id(parameter) not in held and not parameter.is_meta:
            parameter.data = torch.empty(0, dtype=parameter.dtype)

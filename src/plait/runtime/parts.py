"""What a rank holds of a plan: its stages, their parameters, and which of these it answers for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.errors import CaptureError, PlanError
from plait.model.by_hand import Branches
from plait.model.capture import Captured, retrace, retrace_by_hand
from plait.model.stages import Stage, build_stage
from plait.model.traced import LossFunction
from plait.plan.matches import check_matches
from plait.plan.plan import Plan
from plait.runtime.start import materialise


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
    """Every parameter and stored buffer of the model → its lowest rank; of those that no stage holds the first."""
    unused: Mapping[str, Tensor]
    """On the first rank, what no stage holds: it is kept, and written, as it is."""
    made: Mapping[str, Tensor]
    """What was on the meta device and has memory now, to be filled; buffers that no checkpoint holds, too."""
    first: bool
    """Whether they are the first rank's."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Parameters, stored buffers and what is unused."""
        return {**self.parameters, **self.buffers, **self.unused}


def capture_for(model: nn.Module, plan: Plan, loss: LossFunction | None, branches: Branches | None = None) -> Captured:
    """The model cut as the plan, or the user's description, says.

    Raises PlanError where the plan is for another model, or for one described otherwise.
    """
    captured = _captured(model, plan, loss, branches)
    given = plan.model
    if captured.graph.fingerprint != given.fingerprint:
        raise PlanError(_difference(captured, plan))
    check_matches(plan, captured.graph)
    return captured


def _captured(model: nn.Module, plan: Plan, loss: LossFunction | None, branches: Branches | None) -> Captured:
    given = plan.model
    if bool(given.values) != (branches is not None):
        raise PlanError(
            f"branches: the plan is for {given.name} described by hand; give its plait.Branches"
            if given.values
            else f"branches: the plan is for {given.name} as it was traced; plan again with the description"
        )
    if branches is None:
        return retrace(model, given.inputs, given.losses, given.outputs, loss, given.mixing, given.precision)
    try:
        return retrace_by_hand(
            model, given.inputs, given.values, given.losses, given.outputs, branches, given.mixing, given.precision
        )
    except CaptureError as error:
        raise PlanError(f"the plan is for another model or description: {error}; plan again with plait plan") from error


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

    What of them is on the meta device gets (unfilled) memory.
    """
    model, canonical = captured[0].model, captured[0].canonical
    pairs = list(zip(captured, plans, strict=True))
    stored = set(model.state_dict().keys())
    owners: dict[str, int] = {}
    for one, plan in pairs:
        _add_owners(owners, one, plan, stored)
    held = {canonical.get(n, n) for n in owners}
    unused = {canonical[n] for n in stored if n in canonical} - held
    owners |= dict.fromkeys(sorted(unused), 0)
    names = {canonical.get(n, n) for c, p in pairs for n in _needed(c, p, rank)}
    made = materialise(model, names, canonical, device)
    if rank == 0:
        made |= materialise(model, unused, canonical, torch.device("cpu"))
    stages = tuple({i: build_stage(c, p.stages[i].layers) for i in _own(p, rank)} for c, p in pairs)
    together = [stage for own in stages for stage in own.values()]
    for stage in together:
        stage.to(device)
    parameters = {n: p for s in together for n, p in s.named_parameters()}
    buffers = {n: t for s in together for n, t in s.named_buffers() if n in stored}
    kept = _tensors(model, unused) if rank == 0 else {}
    counted = frozenset(n for n in (*parameters, *buffers, *kept) if owners.get(n) == rank)
    return Parts(stages, parameters, buffers, counted, owners, kept, made, rank == 0)


def _needed(captured: Captured, plan: Plan, rank: int) -> list[str]:
    """Parameters and buffers that the rank's stages, and the counts of weighted losses, read."""
    layers = [name for i in _own(plan, rank) for name in plan.stages[i].layers]
    buffers = [b for name in layers for b in captured.graph.by_name[name].buffers]
    return [*captured.graph.parameters(layers), *buffers, *captured.counting]


def _tensors(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    found = (*model.named_parameters(), *model.named_buffers())
    return {name: tensor for name, tensor in found if name in names}


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
    held = {id(p) for p in parts.tensors.values()}
    freed: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():  # noqa: SLF001
            if parameter is not None and id(parameter) not in held and not parameter.is_meta:
                if id(parameter) not in freed:
                    freed[id(parameter)] = nn.Parameter(
                        torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad
                    )
                module._parameters[name] = freed[id(parameter)]  # noqa: SLF001

"""From the choices (which layers, which ranks, which schedule) to a whole Plan: everything else is derived."""

from collections.abc import Iterable, Sequence

from pydantic import ValidationError

from plait.cluster.spec import Cluster
from plait.cost.costs import Costs
from plait.cost.links import all_reduce_seconds, slowest_link
from plait.cost.memory import fixed_bytes
from plait.errors import PlanError
from plait.model.graph import BranchGraph, Parameter, Scope
from plait.plan.choices import Choices, StageChoice, checked
from plait.plan.compile import placement_of
from plait.plan.plan import (
    ModelPlan,
    Plan,
    PricePlan,
    ReductionPlan,
    ReplicaPlan,
    SchedulePlan,
    StagePlan,
    Transfer,
)
from plait.plan.pricing import kept_size, size_of, stage_cost, values_read

__all__ = ["StageChoice", "assemble"]


def assemble(
    graph: BranchGraph,
    cluster: Cluster,
    devices: Sequence[str],
    stages: Sequence[StageChoice],
    micro_batches: Sequence[int],
    schedule: SchedulePlan,
    *,
    costs: Costs | None = None,
    optimizer_bytes_per_parameter_byte: float = 2.0,
) -> Plan:
    """The plan of these choices: stages in topological order, transfers, reductions and, with ``costs``, prices.

    ``devices[rank]`` names a device of the cluster; ``micro_batches`` are samples by global number.
    Raises PlanError where layers are missing, given twice or unknown, where stages depend on each other in a
    cycle, or where replicas and micro-batches don't match; CostError where a layer has no price.
    """
    choices = checked(graph, cluster, devices, stages, micro_batches)
    backward = _backward(choices)
    try:
        plan = Plan(
            model=_model(graph),
            cluster=cluster,
            devices=tuple(devices),
            micro_batches=tuple(micro_batches),
            stages=_stages(choices, backward, costs, optimizer_bytes_per_parameter_byte),
            transfers=_transfers(choices, backward),
            reductions=_reductions(choices, backward),
            step_seconds=_step_seconds(choices, backward, costs) if costs else (),
            schedule=schedule,
        )
    except ValidationError as error:
        raise PlanError("; ".join(e["msg"].removeprefix("Value error, ") for e in error.errors())) from None
    placement_of(plan)  # refuses micro-batches that no replica runs, or two
    return plan


def _backward(choices: Choices) -> frozenset[str]:
    """Names of the stages that have a backward: a gradient reaches them and they use it or pass it on."""
    return frozenset(s.name for s in choices.stages if any(any(choices.graph.backward(x)) for x in s.layers))


def _model(graph: BranchGraph) -> ModelPlan:
    return ModelPlan(
        name=graph.model,
        fingerprint=graph.fingerprint,
        precision=graph.precision,
        inputs=graph.inputs,
        losses=graph.losses,
        outputs=graph.outputs,
        mixing=graph.mixing,
        values=graph.values if graph.by_hand else {},
    )


def _stages(
    choices: Choices, backward: frozenset[str], costs: Costs | None, optimizer_bytes: float
) -> tuple[StagePlan, ...]:
    owned = _owned_parameters(choices)
    return tuple(_stage(choices, s, s.name in backward, owned[s.name], costs, optimizer_bytes) for s in choices.stages)


def _stage(
    choices: Choices,
    stage: StageChoice,
    backward: bool,
    parameters: Iterable[Parameter],
    costs: Costs | None,
    optimizer_bytes: float,
) -> StagePlan:
    fixed = fixed_bytes(parameters, optimizer_bytes)
    scope = choices.scope(stage)
    return StagePlan(
        name=stage.name,
        branch=choices.graph.by_name[stage.layers[0]].branch,
        layers=stage.layers,
        scope=Scope.BATCH if scope is Scope.BATCH else Scope.MICROBATCH,
        replicas=tuple(ReplicaPlan(rank=rank, micro_batches=given) for rank, given in stage.replicas),
        backward=backward,
        weight_gradient=any(choices.graph.backward(x).weights for x in stage.layers),
        recompute=stage.recompute and backward,
        parameter_bytes=fixed.parameters,
        gradient_bytes=fixed.gradients,
        optimizer_bytes=fixed.optimizer,
        prices=_prices(choices, stage, costs, backward) if costs else (),
    )


def _owned_parameters(choices: Choices) -> dict[str, list[Parameter]]:
    """Stage → its parameters without tied ones that an earlier stage already puts on all of its ranks."""
    holders: dict[str, set[int]] = {}
    owned: dict[str, list[Parameter]] = {}
    for stage in choices.stages:
        owned[stage.name] = []
        for name, parameter in choices.graph.parameters(stage.layers).items():
            held = holders.setdefault(name, set())
            if not set(stage.ranks) <= held:
                owned[stage.name].append(parameter)
            held.update(stage.ranks)
    return owned


def _prices(choices: Choices, stage: StageChoice, costs: Costs, backward: bool) -> tuple[PricePlan, ...]:
    kept = kept_size(choices.graph, stage.layers)
    found = []
    for rank, given in stage.replicas:
        for samples in choices.samples(stage, given):
            cost = stage_cost(stage.layers, choices.devices[rank], samples, costs, backward=backward)
            found.append(
                PricePlan(
                    rank=rank,
                    samples=samples,
                    forward=cost.forward,
                    input_gradient=cost.input_gradient,
                    weight_gradient=cost.weight_gradient,
                    held=cost.held_bytes,
                    kept=kept.bytes(samples) if backward else 0.0,
                    source=cost.source,
                )
            )
    return tuple(found)


def _transfers(choices: Choices, backward: frozenset[str]) -> tuple[Transfer, ...]:
    graph = choices.graph
    home = {name: stage.name for stage in choices.stages for name in stage.layers}
    found: list[Transfer] = []
    for target in choices.stages:
        by_source: dict[str, list[str]] = {}
        for value in values_read(graph, target.layers):
            by_source.setdefault(home[graph.producers[value]], []).append(value)
        found += [
            _transfer(graph, source.name, target.name, by_source[source.name], target.name in backward)
            for source in choices.stages
            if source.name in by_source
        ]
    return tuple(found)


def _transfer(graph: BranchGraph, source: str, target: str, values: Sequence[str], backward: bool) -> Transfer:
    specs = [graph.values[v] for v in values]
    size = size_of(specs)
    gradients = [s for s in specs if s.gradient and backward]
    back = size_of(gradients)
    return Transfer(
        source=source,
        target=target,
        values=tuple(values),
        bytes_per_sample=size.per_sample,
        bytes_fixed=size.fixed,
        gradient=bool(gradients),
        gradient_bytes_per_sample=back.per_sample,
        gradient_bytes_fixed=back.fixed,
    )


def _trained(choices: Choices, backward: frozenset[str]) -> dict[int, dict[str, Parameter]]:
    """Rank → the parameters that get a gradient there."""
    held: dict[int, dict[str, Parameter]] = {rank: {} for rank in range(len(choices.devices))}
    for stage in choices.stages:
        if stage.name in backward:
            trained = {n: p for n, p in choices.graph.parameters(stage.layers).items() if p.trainable}
            for rank in stage.ranks:
                held[rank].update(trained)
    return held


def _reductions(choices: Choices, backward: frozenset[str]) -> tuple[ReductionPlan, ...]:
    """One reduction per set of ranks that hold the same trained parameters."""
    holders: dict[str, list[int]] = {}
    parameters: dict[str, Parameter] = {}
    for rank, held in _trained(choices, backward).items():
        for name, parameter in held.items():
            holders.setdefault(name, []).append(rank)
            parameters[name] = parameter
    groups: dict[tuple[int, ...], list[Parameter]] = {}
    for name, ranks in holders.items():
        if len(ranks) > 1:
            groups.setdefault(tuple(ranks), []).append(parameters[name])
    return tuple(_reduction(choices, ranks, group) for ranks, group in sorted(groups.items()))


def _reduction(choices: Choices, ranks: tuple[int, ...], parameters: Sequence[Parameter]) -> ReductionPlan:
    nbytes = sum(p.learning_nbytes for p in parameters)
    link = slowest_link(choices.cluster, [choices.devices[r] for r in ranks])
    return ReductionPlan(
        parameters=tuple(p.name for p in parameters),
        ranks=ranks,
        nbytes=nbytes,
        seconds=all_reduce_seconds(link, len(ranks), nbytes),
    )


def _step_seconds(choices: Choices, backward: frozenset[str], costs: Costs) -> tuple[float, ...]:
    return tuple(
        costs.step_seconds(sum(p.learning_nbytes for p in held.values()), choices.devices[rank])
        for rank, held in _trained(choices, backward).items()
    )

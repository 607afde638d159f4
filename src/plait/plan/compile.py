"""From a plan file to what the scheduler, the simulator and the engine read: placement and prices."""

from plait.errors import PlanError
from plait.model.graph import Scope
from plait.plan.plan import Plan, ReplicaPlan, StagePlan
from plait.schedule.action import ALL
from plait.schedule.placement import Edge, PlacedStage, Placement, Reduction, Replica
from plait.simulate.prices import LinkPrice, Prices, StagePrice


def placement_of(plan: Plan) -> Placement:
    """The plan's placement; raises PlanError where replicas and micro-batches don't match."""
    return Placement(
        ranks=len(plan.devices),
        stages=tuple(_placed(stage, len(plan.micro_batches)) for stage in plan.stages),
        edges=_edges(plan),
        micro_batches=plan.micro_batches,
        reductions=_reductions(plan),
    )


def _placed(stage: StagePlan, count: int) -> PlacedStage:
    batch = stage.scope is Scope.BATCH
    return PlacedStage(
        name=stage.name,
        branch=stage.branch,
        replicas=tuple(Replica(r.rank, (ALL,) if batch else _numbers(r, count)) for r in stage.replicas),
        batch_scope=batch,
        backward=stage.backward,
        weight_gradient=stage.weight_gradient,
        recompute=stage.recompute,
    )


def _numbers(replica: ReplicaPlan, count: int) -> tuple[int, ...]:
    return tuple(range(count)) if replica.micro_batches == "all" else replica.micro_batches


def _edges(plan: Plan) -> tuple[Edge, ...]:
    return tuple(
        Edge(
            source=plan.stage_index[t.source],
            target=plan.stage_index[t.target],
            values=t.values,
            bytes_per_sample=t.bytes_per_sample,
            bytes_fixed=t.bytes_fixed,
            gradient=t.gradient,
            gradient_bytes_per_sample=t.gradient_bytes_per_sample,
            gradient_bytes_fixed=t.gradient_bytes_fixed,
        )
        for t in plan.transfers
    )


def _reductions(plan: Plan) -> tuple[Reduction, ...]:
    """Reductions with the stages, per rank, after whose last backward each may begin."""
    return tuple(
        Reduction(
            parameters=r.parameters,
            ranks=r.ranks,
            stages=tuple(_stages_on(plan, rank) for rank in r.ranks),
            nbytes=r.nbytes,
        )
        for r in plan.reductions
    )


def _stages_on(plan: Plan, rank: int) -> tuple[int, ...]:
    return tuple(i for i, s in enumerate(plan.stages) if any(r.rank == rank for r in s.replicas))


def prices_of(plan: Plan) -> Prices:
    """The plan's prices; raises PlanError where a stage lacks the price of a micro-batch that it runs."""
    devices = [plan.cluster.by_name[name] for name in plan.devices]
    count = len(devices)
    links = {
        (a, b): LinkPrice(link.latency, link.bandwidth)
        for a in range(count)
        for b in range(count)
        if a != b
        for link in (plan.cluster.link(devices[a], devices[b]),)
    }
    prices = Prices(
        stages={
            (index, p.rank, p.samples): StagePrice(p.forward, p.input_gradient, p.weight_gradient, p.held, p.kept)
            for index, stage in enumerate(plan.stages)
            for p in stage.prices
        },
        links=links,
        reductions=tuple(r.seconds for r in plan.reductions),
        step=plan.step_seconds or (0.0,) * count,
        fixed_bytes=tuple(_fixed_bytes(plan, rank) for rank in range(count)),
        capacity=tuple(d.memory for d in devices),
    )
    _check_priced(plan, prices)
    return prices


def _fixed_bytes(plan: Plan, rank: int) -> float:
    held = [s for s in plan.stages if any(r.rank == rank for r in s.replicas)]
    return sum(s.parameter_bytes + s.gradient_bytes + s.optimizer_bytes for s in held)


def _check_priced(plan: Plan, prices: Prices) -> None:
    placement = placement_of(plan)
    for rank in range(placement.ranks):
        for stage, micro_batch in placement.work(rank):
            samples = placement.samples(micro_batch)
            if (stage, rank, samples) not in prices.stages:
                raise PlanError(
                    f"stages.{plan.stages[stage].name}.prices: none for rank {rank} and {samples} samples; "
                    "simulating needs one (plait plan writes them)"
                )

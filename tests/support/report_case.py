"""A plan with opposed branches on two sites, its predicted timeline, and a run that was a little slower."""

from dataclasses import dataclass

from plait.cluster.spec import Cluster
from plait.model.graph import BranchGraph, Layer, Loss, Parameter, Scope, TensorSpec
from plait.plan.assemble import StageChoice, assemble
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.simulate import simulate
from plait.simulate.timeline import Event, Timeline
from support.plans import UnitCosts

CLUSTER = """
format: plait-cluster/1
name: two sites
device_types:
  fast: {like: local, speed: 0.35, memory: 1 GiB}
  slow: {like: local, speed: 0.2, memory: 512 MiB}
sites:
  - {name: berlin, nodes: [{name: b0, devices: [{type: fast, count: 2}]}]}
  - {name: paris, nodes: [{name: p0, devices: [{type: slow, count: 2}]}]}
links: [{between: [berlin, paris], bandwidth: 200 Mbit/s, latency: 5 ms}]
"""


@dataclass(frozen=True)
class Case:
    plan: Plan
    predicted: Timeline
    measured: Timeline


def graph() -> BranchGraph:
    spec = TensorSpec(shape=(1, 64), dtype="float32", gradient=True)
    layers, values = [], {"loss": TensorSpec(shape=(), dtype="float32", batch_dim=None, gradient=True)}
    for branch in ("vision", "text"):
        for i in range(4):
            name = f"{branch}.{i}"
            values[name] = spec
            layers.append(
                Layer(
                    name=name,
                    branch=branch,
                    inputs=(branch,) if i == 0 else (),
                    reads=(f"{branch}.{i - 1}",) if i else (),
                    writes=(name,),
                    parameters=(Parameter(name=f"{name}.weight", shape=(64, 64), dtype="float32"),),
                )
            )
    layers.append(Layer(name="loss", branch="loss", scope=Scope.BATCH, reads=("vision.3", "text.3"), writes=("loss",)))
    return BranchGraph(
        model="TwoTowers",
        inputs={"vision": spec, "text": spec},
        values=values,
        layers=tuple(layers),
        losses=(Loss(value="loss", scope=Scope.BATCH),),
    )


def make_case() -> Case:
    cluster = Cluster.parse(CLUSTER)
    stages = [StageChoice(f"vision.{i}", (f"vision.{i}",), ((i, "all"),)) for i in range(4)]
    stages += [StageChoice(f"text.{i}", (f"text.{i}",), ((3 - i, "all"),)) for i in range(4)]
    stages.append(StageChoice("loss", ("loss",), ((1, "all"),)))
    plan = assemble(
        graph(), cluster, [d.name for d in cluster.devices], stages, [2, 2, 2, 2], SchedulePlan(name="branch_aware"),
        costs=UnitCosts(),
    )  # fmt: skip
    predicted = simulate(plan)
    return Case(plan, predicted, slower(predicted, 1.06))


def slower(timeline: Timeline, factor: float) -> Timeline:
    events = [
        Event(e.rank, e.lane, e.label, e.start * factor, e.end * factor, e.stage, e.micro_batch, e.nbytes)
        for e in timeline.events()
    ]
    samples = zip(timeline.memory_rank, timeline.memory_time * factor, timeline.memory_bytes, strict=True)
    memory = [(int(rank), float(time), float(nbytes)) for rank, time, nbytes in samples]
    return Timeline.build(
        events, memory, ranks=timeline.ranks, stages=timeline.stages, step_time=timeline.step_time * factor,
        origin="measured",
    )  # fmt: skip

"""Frozen parts cost no backward: not in the schedule, not in messages, not in memory."""

from plait.model.capture import capture
from plait.plan.plan import Plan
from plait.plan.schedules import schedule_of
from plait.runtime.engine import Engine
from plait.schedule.action import FORWARDS, Kind
from plait.simulate.timeline import Timeline
from support import partitions, zoo_models
from support.jobs import Maker, sgd
from support.pool import Pool

LOCKED = ("vision_model.embeddings", "vision_model.encoder.layers.0")


def plan_for(make: Maker) -> Plan:
    """The layers that are locked in a locked tower on rank 1, all others on rank 0."""
    graph = capture(*make()).graph
    homes = {x.name: ((int(x.name in LOCKED), "all"),) for x in graph.layers}
    return partitions.plan_by(graph, 2, homes)  # type: ignore[arg-type]


def timeline(rank: int, make: Maker, plan_text: str) -> Timeline | None:
    model, batch = make()
    with Engine(model, Plan.parse(plan_text), optimizer=sgd, timeout=30) as engine:
        engine.step(batch)
        return engine.timeline()


def test_a_locked_tower_runs_forwards_alone_and_gets_no_gradient() -> None:
    plan = plan_for(zoo_models.maker("clip_frozen_vision"))
    programs = schedule_of(plan)
    locked = programs.rows[1]
    assert {a.kind for a in locked} - FORWARDS == {Kind.STEP}
    assert [(t.gradient, t.gradient_bytes_per_sample) for t in plan.transfers if t.source.startswith("vision")][:1] == [
        (False, 0)
    ]


def test_a_locked_tower_holds_no_activations(ranks: Pool) -> None:
    held = {}
    for name in ("clip", "clip_frozen_vision"):
        make = zoo_models.maker(name)
        plan = plan_for(make)
        found = ranks.run(2, timeline, make, plan.dump())[0]
        own = found.memory_bytes[found.memory_rank == 1]
        held[name] = own.max() - own.min()
    assert held["clip"] > 0
    assert held["clip_frozen_vision"] == 0

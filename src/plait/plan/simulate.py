"""Checks a plan and predicts its step: what ``plait verify``, ``plait simulate`` and every launch call."""

from collections import defaultdict

from plait.cost.costs import Source
from plait.errors import PlanError
from plait.plan.compile import placement_of, prices_of
from plait.plan.plan import Plan, Prediction
from plait.plan.schedules import schedule_of
from plait.schedule.action import Action
from plait.schedule.lower import lower
from plait.schedule.program import Op, Programs
from plait.schedule.verify import verify
from plait.simulate.core import run
from plait.simulate.flat import flatten
from plait.simulate.memory import check_memory, held_over_time
from plait.simulate.prices import Prices
from plait.simulate.simulate import simulate as simulate_programs
from plait.simulate.timeline import Lane, Timeline


def simulate(plan: Plan) -> Timeline:
    """The predicted timeline of one step, memory not judged. Raises PlanError where it can't run or lacks a price."""
    return _simulated(plan, _programs(plan), prices_of(plan))


def quick_merit(plan: Plan) -> tuple[float, float]:
    """By what share of it a rank's memory is short, and ``simulate(plan).step_time``: for searching.

    A schedule made by name needs no verifying, and making events takes longer than simulating.
    """
    programs, prices = lower(schedule_of(plan), placement_of(plan)), prices_of(plan)
    flat = flatten(programs, prices)
    begin, end, _ = run(flat)
    begun = [0.0] * len(programs.reductions)
    for rank, program in enumerate(programs.ranks):
        for i, instruction in enumerate(program, flat.first[rank]):
            if instruction.op is Op.REDUCE:
                begun[instruction.index] = max(begun[instruction.index], begin[i])
    done = [end[flat.first[r + 1] - 1] for r, program in enumerate(programs.ranks) if program]
    reduced = [at + seconds for at, seconds in zip(begun, prices.reductions, strict=True)]
    full = max(held / prices.capacity[rank] for rank, _, held in held_over_time(programs, prices, begin, end))
    return max(full - 1.0, 0.0), max([*done, *reduced]) + max(prices.step)


def check(plan: Plan) -> Programs:
    """The plan's programs, verified and within memory. Raises PlanError: a plan that passes may be launched.

    A plan without prices (one written by hand, say) is checked in all but memory.
    """
    programs = _programs(plan)
    if any(stage.prices for stage in plan.stages):
        prices = prices_of(plan)
        check_memory(_simulated(plan, programs, prices), prices, plan.devices)
    return programs


def predict(plan: Plan) -> Prediction:
    """What the simulator says of the plan. Raises PlanError as ``simulate`` and ``check`` do."""
    programs, prices = _programs(plan), prices_of(plan)
    timeline = _simulated(plan, programs, prices)
    check_memory(timeline, prices)
    return prediction_of(plan, timeline)


def prediction_of(plan: Plan, timeline: Timeline) -> Prediction:
    """The figures of a predicted timeline that a plan file keeps."""
    return Prediction(
        step_time=timeline.step_time,
        samples_per_second=plan.global_batch / timeline.step_time if timeline.step_time else 0.0,
        bubble_ratio=timeline.bubble_ratio,
        peak_memory=tuple(float(b) for b in timeline.peak_bytes),
        sources=_sources(plan, timeline),
    )


def _programs(plan: Plan) -> Programs:
    """Verified: complete, ordered, free of deadlock."""
    _check_codecs(plan)
    programs = lower(schedule_of(plan), placement_of(plan))
    verify(programs)
    return programs


def _check_codecs(plan: Plan) -> None:
    for index, transfer in enumerate(plan.transfers):
        for field, codec in (("codec", transfer.codec), ("gradient_codec", transfer.gradient_codec)):
            if codec != "exact":
                raise PlanError(
                    f"transfers.{index}.{field} ({transfer.source} → {transfer.target}): {codec!r} is not built yet; "
                    "write exact"
                )


def _simulated(plan: Plan, programs: Programs, prices: Prices) -> Timeline:
    return simulate_programs(programs, prices, plan.devices)


def _sources(plan: Plan, timeline: Timeline) -> dict[Source, float]:
    """Share of the stages' compute time by where its price comes from."""
    source = {(i, p.rank, p.samples): p.source for i, s in enumerate(plan.stages) for p in s.prices}
    spent: dict[Source, float] = defaultdict(float)
    for event in timeline.events():
        if event.lane is Lane.COMPUTE and event.stage >= 0:
            action = Action.parse(event.label)
            samples = plan.global_batch if action.micro_batch < 0 else plan.micro_batches[action.micro_batch]
            spent[source[event.stage, event.rank, samples]] += event.end - event.start
    total = sum(spent.values())
    return {s: seconds / total for s, seconds in sorted(spent.items())} if total else {}

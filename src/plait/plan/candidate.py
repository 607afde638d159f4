"""A layout under a schedule, as a plan: quickly timed, or judged in full."""

from plait.plan.assemble import assemble
from plait.plan.layout import Layout
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.simulate import predict
from plait.plan.strands import Work


def made(work: Work, layout: Layout, schedule: str) -> Plan:
    """The layout's plan, not judged. Raises PlanError where its stages contradict each other."""
    return assemble(
        work.graph,
        work.cluster,
        layout.devices,
        layout.stages,
        layout.setting.sizes,
        SchedulePlan(name=schedule),
        costs=work.costs,
        optimizer_bytes_per_parameter_byte=work.optimizer_bytes,
    )


def judged(work: Work, layout: Layout, schedule: str) -> Plan:
    """The layout's plan with its prediction.

    Raises PlanError where it can't run or doesn't fit, ScheduleError where the schedule doesn't suit it.
    """
    plan = made(work, layout, schedule)
    return plan.model_copy(update={"predicted": predict(plan)})


def step_time(plan: Plan) -> float:
    """Predicted seconds of a judged plan's step."""
    return plan.predicted.step_time if plan.predicted else float("inf")

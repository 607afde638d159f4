"""``plait verify``: whether a plan can run."""

from plait.cli._common import PlanArgument, naming, plan_of, say


def command(plan: PlanArgument) -> None:
    """Check that a plan is complete, in order, free of deadlock and within each device's memory.

    Every launch does the same first. Example: plait verify plan.yaml
    """
    from plait.plan.simulate import check

    loaded = plan_of(plan)
    with naming(plan):
        programs = check(loaded)
    actions = sum(len(row) for row in programs.schedule.rows)
    priced = any(stage.prices for stage in loaded.stages)
    say(
        f"{plan}: sound: {len(loaded.stages)} stages on {len(loaded.devices)} devices, {actions} actions, "
        f"{len(programs.messages)} messages, {len(programs.reductions)} reductions of gradients"
    )
    if not priced:
        say("memory was not checked: the plan has no prices (plait plan writes them)")

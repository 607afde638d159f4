"""``plait plan``: the job on its cluster, as a plan file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli._common import (
    JobArgument,
    ScopeOption,
    capture_job,
    cluster_of,
    console,
    costs_of,
    example_of,
    one_thread,
    profile_captured,
    profile_sizes,
    say,
    scopes_of,
)
from plait.job.job import Job
from plait.job.rates import check_update, scheduler_of
from plait.job.tasks import file_of, jobs_of
from plait.job.update import optimizer_of
from plait.units import show_seconds

if TYPE_CHECKING:
    from plait.cluster.spec import Cluster
    from plait.cost.table import CostTable
    from plait.model.capture import Captured
    from plait.plan.plan import Plan

OPTIMIZER_SLOTS = {"SGD": 0.0, "Adagrad": 1.0, "RMSprop": 1.0, "Adam": 2.0, "AdamW": 2.0}
"""Bytes of optimizer state per byte of parameters; others are taken to keep two slots, as Adam."""


def command(
    job: JobArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the plan to this file.")] = Path("plan.yaml"),
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Costs measured by plait profile; measured now without.")
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", min=1, help="Samples of a micro-batch; the best by default.")
    ] = None,
    schedule: Annotated[
        str | None, typer.Option("--schedule", help="branch_aware, gpipe, 1f1b, chimera or sequential.")
    ] = None,
    all_devices: Annotated[
        bool, typer.Option("--all-devices", help="Use every device, also those that cost more than they bring.")
    ] = False,
    scope: ScopeOption = None,
) -> None:
    """Find the plan of least predicted step time for a job on its cluster.

    Of a job with tasks each task has its plan (plan.TASK.yaml), all on the same devices.

    Example: plait plan job.yaml -o plan.yaml --profile profile.yaml
    """
    from plait.cost.table import CostTable
    from plait.plan.plan import Plan
    from plait.plan.tasks import on_same_ranks

    one_thread()
    loaded = Job.load(job)
    optimizer_of(loaded)  # a wrong name or option shows before the work, not after
    scheduler_of(loaded)
    cluster = cluster_of(loaded)
    examples = {task: (one, example_of(one)) for task, one in jobs_of(loaded).items()}
    captures = {task: capture_job(one, batch, scopes_of(scope)) for task, (one, batch) in examples.items()}
    check_update(loaded, *captures.values())
    plans: dict[str, Plan] = {}
    for task, (one, batch) in examples.items():
        if task:
            say(f"task {task}")
        table = CostTable.load(file_of(profile, task)) if profile is not None else None
        if table is None:
            table = measure_if_needed(cluster, captures[task], batch, one)
        # Ranks take part in every task, though one of them may have too little work for all.
        every = all_devices or len(examples) > 1
        plans[task] = make_plan(
            one, cluster, captures[task], table, micro_batch=micro_batch, schedule=schedule, all_devices=every
        )
        show(plans[task])
    for task, found in on_same_ranks(plans).items():
        found.save(file_of(output, task))
        say(f"wrote {file_of(output, task)}")


def measure_if_needed(
    cluster: "Cluster", captured: "Captured", example: dict[str, Any], job: Job
) -> "CostTable | None":
    """A profile of this machine, if the cluster's devices are described by it."""
    from plait.cluster.probe import LOCAL

    if all(device.like != LOCAL for device in cluster.devices):
        return None
    say(f"the cluster's devices are like this machine ({LOCAL!r}): measuring it (plait profile keeps such figures)")
    return profile_captured(captured, example, job, profile_sizes(job.global_batch))


def make_plan(
    job: Job,
    cluster: "Cluster",
    captured: "Captured",
    table: "CostTable | None",
    *,
    micro_batch: int | None = None,
    schedule: str | None = None,
    all_devices: bool = False,
) -> "Plan":
    """The best plan found, with a line on progress."""
    from plait.plan.search import plan as search

    shown = console()
    with shown.status("planning") as status:
        return search(
            captured.graph,
            cluster,
            costs_of(captured.graph, cluster, table),
            global_batch=job.global_batch,
            micro_batch=micro_batch or job.micro_batch,
            schedule=schedule,
            every_device=all_devices,
            optimizer_bytes_per_parameter_byte=OPTIMIZER_SLOTS.get(job.optimizer.name, 2.0),
            progress=lambda done, total, best: status.update(f"planning: {done} of {total} plans judged, best: {best}"),
        )


def show(plan: "Plan") -> None:
    """The stages, and what the plan predicts."""
    from plait.report.tables import plan_summary

    console().print(plan_summary(plan))
    sizes = " + ".join(f"{plan.micro_batches.count(n)}×{n}" for n in dict.fromkeys(plan.micro_batches))
    say(f"schedule {plan.schedule.name}, micro-batches {sizes} samples")
    if plan.predicted is not None:
        say(
            f"predicted: step {show_seconds(plan.predicted.step_time)}, {plan.predicted.samples_per_second:.4g} "
            f"samples/s, bubble ratio {plan.predicted.bubble_ratio:.3f}"
        )
        shares = ", ".join(f"{share:.0%} {source}" for source, share in plan.predicted.sources.items())
        say(f"costs: {shares}" if shares else "costs: none given")

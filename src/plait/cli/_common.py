"""What several commands share: the console, arguments, and the steps from a job to a plan."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from plait.errors import FileError, PlanError, ScheduleError
from plait.job.job import Job
from plait.units import show_seconds

if TYPE_CHECKING:
    from plait.cluster.spec import Cluster
    from plait.cost.costs import Costs
    from plait.cost.table import CostTable
    from plait.job.folder import RunFolder
    from plait.model.capture import Captured
    from plait.model.graph import BranchGraph
    from plait.plan.plan import Plan

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="The job's file (job.yaml).")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan's file.")]
ScopeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scope", metavar="NAME=SCOPE", help="A loss term or module has this scope: microbatch, weighted or batch."
    ),
]
PlanOption = Annotated[Path, typer.Option("--plan", metavar="PLAN", help="The plan's file.")]


def console() -> Console:
    """Standard output; wide enough not to break paths where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=140)


def say(text: str) -> None:
    """A line for people."""
    console().print(text, soft_wrap=True, markup=False)


def scopes_of(given: Sequence[str] | None) -> dict[str, str]:
    """The scopes that ``--scope`` options give, by name."""
    found = {}
    for text in given or ():
        name, separator, scope = text.rpartition("=")
        if not separator or not name or not scope:
            raise FileError(f"--scope: {text!r} must be written NAME=SCOPE, such as loss=batch")
        found[name.strip()] = scope.strip()
    return found


def one_thread() -> None:
    """A device of type ``local`` is one core, here as in the ranks."""
    import torch

    torch.set_num_threads(1)


def example_of(job: Job) -> dict[str, Any]:
    """The job's first global batch, filled up to the lengths that are planned for."""
    from plait.job.data import data_of
    from plait.runtime.padding import planned

    example = data_of(job).first()
    return example if job.lengths is None else planned(example, job.lengths)


def capture_job(job: Job, example: dict[str, Any], scopes: Mapping[str, str] | None = None) -> "Captured":
    """The job's model, captured in its precision; ``scopes`` are given beside the job's own, and win.

    A model that this machine can't well hold is captured without weights, if its code lets it be built so; one that is
    described by hand has to run.
    """
    from plait.job.model import branches_of, light_model_of, loss_of, model_of
    from plait.model.capture import capture

    both = {**job.scopes, **(scopes or {})}
    model = light_model_of(job) if job.model.branches is None else model_of(job)
    return capture(
        model,
        example,
        outputs=job.outputs,
        loss=loss_of(job),
        scopes=both,
        precision=job.precision,
        branches=branches_of(job, model),
    )


def cluster_of(job: Job) -> "Cluster":
    """The job's cluster."""
    from plait.cluster.spec import Cluster

    return Cluster.load(job.beside(job.cluster))


def plan_of(path: Path) -> "Plan":
    """The plan in a file."""
    from plait.plan.plan import Plan

    return Plan.load(path)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What is wrong with the plan is said with its file."""
    try:
        yield
    except (PlanError, ScheduleError) as error:
        raise type(error)(f"{path}: {error}") from error


def profile_sizes(global_batch: int) -> list[int]:
    """Micro-batch sizes that a planner may want: the global batch halved up to five times."""
    return sorted({max(1, global_batch // 2**k) for k in range(6)})


def profile_captured(captured: "Captured", example: dict[str, Any], job: Job, sizes: list[int]) -> "CostTable":
    """Profile a captured job on this machine, with a bar."""
    from rich.progress import Progress

    from plait.cost.profile import profile

    shown = console()
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("profiling", total=None)
        return profile(
            captured,
            example,
            sizes,
            global_batch=job.global_batch,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def costs_of(graph: "BranchGraph", cluster: "Cluster", table: "CostTable | None") -> "Costs":
    """Measured costs where there are any, else modelled ones from the catalog's datasheets."""
    from plait.cost.combined import Combined
    from plait.cost.roofline import RooflineCosts
    from plait.cost.table import TableCosts

    modelled = RooflineCosts.of(graph, cluster)
    return modelled if table is None else Combined(TableCosts(graph, table), modelled)


def save_report(path: Path, trace: Path | None, folder: "RunFolder") -> None:
    """Write the page, and the trace, of what a run's folder holds."""
    from plait.plan.plan import Plan
    from plait.plan.simulate import simulate
    from plait.report.html import write_report
    from plait.report.perfetto import write_trace
    from plait.simulate.timeline import Timeline

    plan = Plan.load(folder.plan)
    predicted = Timeline.load(folder.predicted) if folder.predicted.exists() else simulate(plan)
    measured = Timeline.load(folder.measured) if folder.measured.exists() else None
    figures = folder.read_summary()
    summary = {name.replace("_", " "): f"{value:.4g}" for name, value in figures.get("metrics", {}).items()}
    if "unpaced_step_seconds" in figures:
        summary["step time without pacing"] = show_seconds(figures["unpaced_step_seconds"])
    write_report(path, plan=plan, predicted=predicted, measured=measured, log=folder.read_log(), summary=summary)
    if trace is not None:
        timelines = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
        write_trace(trace, timelines)

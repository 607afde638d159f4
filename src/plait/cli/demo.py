"""``plait demo``: the whole path on real data, on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli._common import (
    capture_job,
    cluster_of,
    console,
    example_of,
    one_thread,
    profile_captured,
    profile_sizes,
    say,
)
from plait.cli.capture import show as show_graph
from plait.cli.plan import make_plan
from plait.cli.plan import show as show_plan
from plait.cli.train import start
from plait.errors import FileError
from plait.job.folder import RunFolder
from plait.job.job import Job
from plait.units import show_seconds

if TYPE_CHECKING:
    from plait.plan.plan import Plan


def command(
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Steps to train; the job's by default (95% need them all).")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for plan, run and report.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train a small CLIP on handwritten digits over two imitated sites: capture to report, in about two minutes.

    Example: plait demo --out runs/demo
    """
    one_thread()
    job = _job(steps, out)
    say(f"plait demo: {job.path}, on {job.beside(job.cluster).name}, into {out}")
    plan = _plan(job, out)
    folder = RunFolder(out)
    _head("train", f"{len(plan.devices)} processes by torchrun (Gloo); slow devices and links are imitated")
    start(job, out / "plan.yaml", folder, resume=False, paced=job.paced)
    _end(job, folder)


def _head(name: str, text: str) -> None:
    console().print(f"\n[bold]{name}[/bold]  {text}")


def _job(steps: int | None, out: Path) -> Job:
    """The demo's job; with other steps, as a file of its own in ``out``."""
    job = Job.load(examples() / "digits" / "job.yaml")
    if steps is None or steps == job.steps:
        return job
    scheduler = job.scheduler and job.scheduler.model_copy(update={"warmup": min(job.scheduler.warmup, steps // 4)})
    return job.moved(out / "job.yaml", {"steps": steps, "scheduler": scheduler})


def examples() -> Path:
    """The folder of examples: in the package where it is installed, else in the checkout."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "_examples", here.parents[3] / "examples"):
        if (folder / "digits" / "job.yaml").exists():
            return folder
    raise FileError(f"{here.parents[1] / '_examples'}: the examples are missing; install plait again")


def _plan(job: Job, out: Path) -> "Plan":
    from plait.plan.simulate import check

    _head("capture", "the model as it is: its layers, branches and loss")
    example = example_of(job)
    captured = capture_job(job, example)
    show_graph(captured.graph)
    captured.graph.save(out / "graph.yaml")
    _head("profile", "every kind of layer, measured on one core of this machine")
    table = profile_captured(captured, example, job, profile_sizes(job.global_batch))
    table.save(out / "profile.yaml")
    say(f"{len(table.layers)} kinds of layers measured; wrote {out / 'profile.yaml'}")
    _head("plan", "stages for unequal devices, both towers sharing them")
    plan = make_plan(job, cluster_of(job), captured, table, all_devices=True)
    show_plan(plan)
    plan.save(out / "plan.yaml")
    _head("verify", "complete, in order, no deadlock, within memory")
    programs = check(plan)
    say(f"{sum(len(row) for row in programs.schedule.rows)} actions, {len(programs.messages)} messages: sound")
    return plan


def _end(job: Job, folder: RunFolder) -> None:
    from plait.report.tables import against
    from plait.simulate.timeline import Timeline

    figures = folder.read_summary()
    _head("report", "prediction against measurement (both mean the imitated devices and links)")
    console().print(against(Timeline.load(folder.predicted), Timeline.load(folder.measured)))
    true = figures.get("unpaced_step_seconds")
    if true:
        say(f"the model's true speed, with nothing imitated: {show_seconds(true)} a step, "
            f"{job.global_batch / true:.4g} samples/s")  # fmt: skip
    say(f"report: {folder.report}")
    say(f"trace:  {folder.trace} (open it at ui.perfetto.dev)")
    accuracy = figures["metrics"]["zero_shot_accuracy"]
    say(f"zero-shot accuracy: {100 * accuracy:.1f}%")

"""``plait train``: a job run as its plan says."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli._common import JobArgument, PlanOption, console, naming, plan_of, save_report, say
from plait.errors import CheckpointError, FileError, PlanError
from plait.files import read_text, write_text
from plait.job.folder import RunFolder
from plait.job.job import Job
from plait.job.tasks import file_of, jobs_of, main_task

if TYPE_CHECKING:
    from plait.plan.plan import Plan

RunOption = Annotated[
    Path,
    typer.Option(
        "--run-dir", metavar="RUN", help="The run's folder; made if absent. One with checkpoints asks for --resume."
    ),
]
PortOption = Annotated[
    int | None, typer.Option("--port", min=1, max=65535, help="Port where the ranks meet; a free one by default.")
]


def command(
    job: JobArgument,
    plan: PlanOption = Path("plan.yaml"),
    run_dir: RunOption = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest whole checkpoint in RUN.")] = False,
    port: PortOption = None,
    paced: Annotated[
        bool | None,
        typer.Option("--paced/--no-paced", help="Wait out priced durations, to rehearse other devices and links."),
    ] = None,
) -> None:
    """Train a job as a plan says; RUN gets log, checkpoints, weights, timelines and report.

    Starts the processes on this machine. On several machines start it by torchrun on each
    (torchrun --nnodes 2 --nproc-per-node 4 ... -m plait train job.yaml --plan plan.yaml): then it is one rank.

    Of a job with tasks, --plan plan.yaml stands for each task's plan.TASK.yaml.

    Example: plait train job.yaml --plan plan.yaml --run-dir runs/first
    """
    loaded = Job.load(job)
    is_paced = loaded.paced if paced is None else paced
    folder = RunFolder(run_dir)
    if not resume:
        check_fresh(folder)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _as_rank(job, plan, folder, resume=resume, paced=is_paced)
        return
    start(loaded, plan, folder, resume=resume, paced=is_paced, port=port)
    summarise(folder)


def _as_rank(job: Path, plan: Path, folder: RunFolder, *, resume: bool, paced: bool) -> None:
    """This process is one of torchrun's."""
    from plait.worker import Task, main

    first = os.environ["RANK"] == "0"
    if first:
        prepare(Job.load(job), plan, folder)
    code = main(Task("train", job, plan, folder.root, resume=resume, paced=paced).arguments())
    if code:
        raise typer.Exit(code)
    if first:
        finish(folder)
        summarise(folder)


def start(job: Job, plan: Path, folder: RunFolder, *, resume: bool, paced: bool, port: int | None = None) -> None:
    """Run the job in processes of this machine, up to its report."""
    from plait.launch import launch
    from plait.worker import Task

    if resume:
        check_resumable(folder)
    loaded = prepare(job, plan, folder)
    launch(
        Task("train", job.path, folder.plan, folder.root, resume=resume, paced=paced), len(loaded.devices), port=port
    )
    finish(folder)


def check_fresh(folder: RunFolder) -> None:
    """Raise CheckpointError where a new run would write over another one's checkpoints."""
    from plait.runtime.checkpoint import latest

    newest = latest(folder.checkpoints)
    if newest is not None:
        raise CheckpointError(
            f"{folder.root}: it holds a run with checkpoints up to {newest.name}; go on from there by --resume, or "
            "give another --run-dir, or remove it"
        )


def check_resumable(folder: RunFolder) -> None:
    """Raise CheckpointError where there is nothing to resume, before any process starts."""
    from plait.runtime.checkpoint import latest

    if latest(folder.checkpoints) is None:
        raise CheckpointError(f"{folder.checkpoints}: no whole checkpoint to resume from; train without --resume")


def prepare(job: Job, plan: Path, folder: RunFolder) -> "Plan":
    """Check the plan (of tasks, each one's) and write down what is run, and what it is predicted to do.

    Gives the plan of the task that the report shows.
    """
    from plait.plan.simulate import simulate
    from plait.plan.tasks import check_tasks

    plans = {name: _checked(file_of(plan, name), job) for name in jobs_of(job)}
    if job.weights is not None:
        _check_weights(job)
    with naming(plan):
        check_tasks(plans)
    for name, loaded in plans.items():
        loaded.save(file_of(folder.plan, name))
    shown = plans[main_task(job)]
    shown.save(folder.plan)
    write_text(folder.job, read_text(job.path))
    if all(stage.prices for stage in shown.stages):
        simulate(shown).save(folder.predicted)
    return shown


def _check_weights(job: Job) -> None:
    """Raise FileError where there are none, before any process starts."""
    from plait.runtime.weights import tensors_in

    try:
        tensors_in(job.beside(str(job.weights)))
    except FileError as error:
        raise FileError(f"{job.path}: weights: {error}") from None


def _checked(path: Path, job: Job) -> "Plan":
    from plait.plan.simulate import check

    loaded = plan_of(path)
    with naming(path):
        check(loaded)
    if loaded.global_batch != job.global_batch:
        raise PlanError(
            f"{path}: its micro-batches are {loaded.global_batch} samples in all, {job.path.name} has global_batch "
            f"{job.global_batch}; plan again with plait plan"
        )
    if loaded.model.precision is not job.precision:
        raise PlanError(
            f"{path}: it is for precision {loaded.model.precision}, {job.path.name} asks for {job.precision}; plan "
            "again with plait plan"
        )
    return loaded


def finish(folder: RunFolder) -> None:
    """Write the run's report and trace."""
    if folder.predicted.exists():
        save_report(folder.report, folder.trace, folder)


def summarise(folder: RunFolder) -> None:
    """The run's figures, for people."""
    from plait.report.tables import against
    from plait.simulate.timeline import Timeline

    figures = folder.read_summary()
    if folder.predicted.exists() and folder.measured.exists():
        console().print(against(Timeline.load(folder.predicted), Timeline.load(folder.measured)))
    if figures.get("skipped_steps"):
        say(f"{figures['skipped_steps']} steps were skipped: their gradients were not finite")
    say_figures(figures)
    say(f"run: {folder.root} (log, checkpoints, model, report.html, trace.json)")


def say_figures(figures: Mapping[str, Any]) -> None:
    """Held-out losses (of tasks, each one's) and metrics, for people; nothing where nothing was evaluated."""
    if "held_out_loss" in figures:
        for task, loss in figures.get("held_out_losses", {"": figures["held_out_loss"]}).items():
            say(f"{task} held-out loss: {loss:.4f}".lstrip())
    for name, value in figures.get("metrics", {}).items():
        say(f"{name.replace('_', ' ')}: {value:.4f}")

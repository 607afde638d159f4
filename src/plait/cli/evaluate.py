"""``plait evaluate``: a run's weights on held-out data."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli._common import JobArgument, plan_of
from plait.cli.train import PortOption, say_figures
from plait.errors import FileError
from plait.job.folder import RunFolder
from plait.job.job import Job
from plait.job.tasks import file_of, main_task


def command(
    job: JobArgument,
    run: Annotated[Path, typer.Option("--run", metavar="RUN", help="The run's folder.")] = Path("run"),
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="The plan's file; the run's own by default.")
    ] = None,
    port: PortOption = None,
) -> None:
    """Evaluate a run's final weights: held-out loss and the job's metric if it has one, forward only, pipelined.

    Example: plait evaluate job.yaml --run runs/first
    """
    from plait.launch import launch
    from plait.worker import Task

    loaded = Job.load(job)
    folder = RunFolder(run)
    if not folder.model.is_dir():
        raise FileError(f"{folder.model}: no weights there; is {run} the folder of a run that has ended?")
    path = plan or folder.plan
    ranks = len(plan_of(file_of(path, main_task(loaded))).devices)
    launch(Task("evaluate", loaded.path, path, folder.root), ranks, port=port)
    say_figures(folder.read_summary())

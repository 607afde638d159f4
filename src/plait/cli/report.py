"""``plait report``: a run's page, made again."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli._common import save_report, say
from plait.cli.train import summarise
from plait.errors import FileError
from plait.job.folder import RunFolder


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the page to this file; RUN/report.html by default.")
    ] = None,
) -> None:
    """Show a run: predicted and measured timelines, memory, loss, as one HTML page and a Perfetto trace.

    Example: plait report runs/first
    """
    folder = RunFolder(run)
    if not folder.plan.exists():
        raise FileError(f"{folder.plan}: missing; {run} is not the folder of a run (plait train makes one)")
    page = output or folder.report
    save_report(page, folder.trace, folder)
    summarise(folder)
    say(f"wrote {page} and {folder.trace}")

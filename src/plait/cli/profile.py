"""``plait profile``: what each layer costs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli._common import (
    JobArgument,
    capture_job,
    console,
    example_of,
    one_thread,
    profile_captured,
    profile_sizes,
    say,
)
from plait.errors import FileError
from plait.job.job import Job
from plait.job.tasks import file_of, jobs_of


def command(
    job: JobArgument,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the profile to this file.")] = Path(
        "profile.yaml"
    ),
    sizes: Annotated[
        str, typer.Option("--sizes", help="Micro-batch sizes, as 8,16,32; halves of the global batch by default.")
    ] = "",
) -> None:
    """Measure forward, input gradient, weight gradient and memory of every layer on this machine.

    Of a job with tasks each task has its profile (profile.TASK.yaml).

    Example: plait profile job.yaml -o profile.yaml
    """
    one_thread()
    for task, loaded in jobs_of(Job.load(job)).items():
        example = example_of(loaded)
        captured = capture_job(loaded, example)
        table = profile_captured(captured, example, loaded, _sizes(sizes) or profile_sizes(loaded.global_batch))
        table.save(file_of(output, task))
        console().print(f"measured {len(table.layers)} kinds of layers on {table.machine}", highlight=False)
        say(f"wrote {file_of(output, task)}")


def _sizes(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = [0]
    if any(size < 1 for size in found):
        raise FileError(f"--sizes: {text!r} must be numbers of samples, as in 8,16,32")
    return found

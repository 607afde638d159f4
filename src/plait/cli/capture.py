"""``plait capture``: the model's layers, branches and losses."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from plait.cli._common import JobArgument, capture_job, console, example_of, one_thread, say
from plait.job.job import Job
from plait.units import show_bytes

if TYPE_CHECKING:
    from plait.model.graph import BranchGraph


def command(
    job: JobArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the graph to this file.")] = None,
) -> None:
    """Take a job's model apart into layers and branches, and show them.

    Example: plait capture job.yaml -o graph.yaml
    """
    one_thread()
    loaded = Job.load(job)
    graph = capture_job(loaded, example_of(loaded)).graph
    show(graph)
    if output is not None:
        graph.save(output)
        say(f"wrote {output}")


def show(graph: "BranchGraph") -> None:
    """A line per branch, and one per loss."""
    parameters = graph.parameters()
    total = sum(p.nbytes for p in parameters.values())
    say(f"{graph.model}: {len(graph.layers)} layers, {len(parameters)} parameters of {show_bytes(total)} altogether")
    table = Table("branch", "layers", "parameters", "first layer", "last layer")
    for branch in graph.branches:
        layers = [layer.name for layer in graph.layers if layer.branch == branch]
        size = sum(p.nbytes for p in graph.parameters(layers).values())
        table.add_row(branch, str(len(layers)), show_bytes(size), layers[0], layers[-1])
    console().print(table)
    for loss in graph.losses:
        say(f"loss {loss.value}: scope {loss.scope}{f' ({loss.count})' if loss.count else ''}")
    for note in graph.notes:
        say(f"note: {note}")

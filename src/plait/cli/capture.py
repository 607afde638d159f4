"""``plait capture``: the model's layers, branches, interactions and losses, as tables and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from plait.cli._common import ScopeOption, console, one_thread, say, scopes_of
from plait.cli._source import captured_of
from plait.job.tasks import file_of
from plait.units import show_bytes

if TYPE_CHECKING:
    from plait.model.graph import BranchGraph

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A job's file, or module:function that gives a model or (model, batch).")
]


ROWS = 60
"""Of a table, shown at most; the graph's file has all."""


def command(
    model: ModelArgument,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the graph to this file.")] = None,
    draw: Annotated[Path | None, typer.Option("--draw", help="Draw the graph into this .svg file.")] = None,
    example: Annotated[
        str | None, typer.Option("--example", help="module:function that gives an example batch (tensors by name).")
    ] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="module:function, called as loss(result, batch).")] = None,
    branches: Annotated[
        str | None, typer.Option("--branches", help="module:function; branches(model) describes the model by hand.")
    ] = None,
    scope: ScopeOption = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="fp32, bf16 or bf16-params; the job's, or fp32, without.")
    ] = None,
) -> None:
    """Take a model apart into layers and branches, and show them.

    Modules are looked for in the current folder first. Of a job with tasks each task has its graph (graph.TASK.yaml).

    Example: plait capture job.yaml --draw graph.svg

    Example: plait capture my_model:build --example my_model:batch -o graph.yaml
    """
    from plait.model.picture.svg import check_suffix, save_picture

    if draw is not None:
        check_suffix(draw)
    one_thread()
    for task, captured in captured_of(model, example, loss, scopes_of(scope), precision, branches).items():
        if task:
            say(f"task {task}")
        show(captured.graph)
        if output is not None:
            captured.graph.save(file_of(output, task))
            say(f"wrote {file_of(output, task)}")
        if draw is not None:
            save_picture(captured.graph, file_of(draw, task))
            say(f"wrote {file_of(draw, task)}")


def show(graph: "BranchGraph") -> None:
    """A line on the whole; tables of branches, interactions and losses; the notes."""
    from plait.model.tables import tables_of

    parameters = graph.parameters()
    total = sum(p.nbytes for p in parameters.values())
    say(f"{graph.model}: {len(graph.layers)} layers, {len(parameters)} parameters of {show_bytes(total)} altogether")
    for found in tables_of(graph):
        if found.rows:
            shown = Table(*found.columns, title=found.title, title_justify="left")
            for row in found.rows[:ROWS]:
                shown.add_row(*row)
            console().print(shown)
            if len(found.rows) > ROWS:
                say(f"… and {len(found.rows) - ROWS} more")
    for note in graph.notes:
        say(f"note: {note}")

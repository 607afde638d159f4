"""``plait simulate``: what a plan's step will look like."""

from pathlib import Path
from typing import Annotated

import typer

from plait.cli._common import PlanArgument, console, naming, plan_of, say
from plait.units import show_seconds


def command(
    plan: PlanArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the timeline to this file (JSON).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page that shows it.")] = None,
    trace: Annotated[Path | None, typer.Option("--trace", help="Write a trace for ui.perfetto.dev.")] = None,
) -> None:
    """Predict a plan's step: time, bubbles, memory, who waits for what.

    Example: plait simulate plan.yaml --html step.html
    """
    from plait.plan.simulate import simulate
    from plait.report.tables import per_rank, render_rows

    loaded = plan_of(plan)
    with naming(plan):
        timeline = simulate(loaded)
    shown = console()
    speed = loaded.global_batch / timeline.step_time if timeline.step_time else 0.0
    say(f"step {show_seconds(timeline.step_time)}, {speed:.4g} samples/s, bubble ratio {timeline.bubble_ratio:.3f}")
    shown.print(per_rank(timeline))
    names = max(len(name) for name in timeline.ranks)
    for name, row in zip(
        timeline.ranks, render_rows(timeline, max(20, min(100, shown.width - names - 4))), strict=True
    ):
        say(f"{name:>{names}} │{row}│")
    say(f"{'':>{names}}  ░ forward  ▒ recompute  ▓ backward  █ weight gradient  S optimizer step")
    if output is not None:
        timeline.save(output)
        say(f"wrote {output}")
    if html is not None:
        from plait.report.html import write_report

        write_report(html, plan=loaded, predicted=timeline)
        say(f"wrote {html}")
    if trace is not None:
        from plait.report.perfetto import write_trace

        write_trace(trace, {"predicted": timeline})
        say(f"wrote {trace}")

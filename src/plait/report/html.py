"""The report: one HTML file that needs no network, with the prediction laid over the measurement."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from plait.files import write_text
from plait.plan.plan import Plan
from plait.report import figures, parts
from plait.simulate.timeline import Timeline

_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "scrollZoom": True,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}


def write_report(
    path: str | os.PathLike[str],
    *,
    plan: Plan,
    predicted: Timeline,
    measured: Timeline | None = None,
    log: Sequence[Mapping[str, Any]] = (),
    summary: Mapping[str, str] | None = None,
) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        plan: the plan that both timelines are of.
        predicted: the simulator's timeline.
        measured: the run's, of a typical step.
        log: a row for each step of the run, with ``step``, ``loss`` and ``step_seconds``.
        summary: more figures for the headline, by name ("zero-shot accuracy": "97.5%").

    Raises:
        FileError: the file can't be written.
    """
    timelines = {"predicted": predicted} | ({"measured": measured} if measured is not None else {})
    gantt, notes = figures.gantt(plan, timelines)
    body = [
        _title(plan),
        parts.headline(plan, timelines, summary or {}),
        _section("Timeline", _TIMELINE, _chart("timeline", gantt), notes),
        _section("Where the time goes", "", _chart("time", figures.where_time_goes(plan, timelines))),
        _section("Memory held", "", _chart("memory", figures.memory(plan, timelines))),
        _section("Stages on devices", "", parts.cluster(plan)),
    ]
    if log:
        text = "The dotted line is the predicted step time."
        body.append(_section("The run", text, _chart("history", figures.history(log, predicted.step_time))))
    body.append(_section("Stages", "Times are means over the micro-batches of a step.", parts.stages(plan, timelines)))
    body.append(_section("Transfers", "", parts.transfers(plan)))
    write_text(path, _page(f"plait: {plan.model.name}", "".join(body)))


_TIMELINE = (
    "Each device has a row for each timeline. Light is forward, full colour backward, dark the weight gradient where "
    "it is split off; thin bars are waiting, lines below a row are messages under way. Drag to zoom, double-click to "
    "see all, hover for details."
)


def _title(plan: Plan) -> str:
    sizes = sorted(set(plan.micro_batches))
    batches = f"{len(plan.micro_batches)} micro-batches of {' or '.join(map(str, sizes))} samples"
    where = f"{plan.model.name} on {plan.cluster.name}: {len(plan.devices)} devices"
    lead = f"{where}, schedule {plan.schedule.name}, {batches}"
    return f'<h1>plait report</h1><p class="lead">{escape(lead)}</p>'


def _section(title: str, text: str, content: str, notes: Sequence[str] = ()) -> str:
    words = "".join(f"<p>{escape(line)}</p>" for line in (text, *notes) if line)
    return f"<section><h2>{escape(title)}</h2>{words}{content}</section>"


def _chart(name: str, figure: go.Figure) -> str:
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, Segoe UI, Roboto, Arial, sans-serif", "size": 12},
    )
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=_CONFIG)
    return html


def _page(title: str, body: str) -> str:
    here = files("plait.report")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f"<script>{get_plotlyjs()}</script></head><body>{body}"
        f"<footer>Made by plait. Charts: Plotly (MIT licence).</footer><script>{script}</script></body></html>\n"
    )

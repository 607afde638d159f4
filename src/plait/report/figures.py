"""The report's figures, drawn with Plotly."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from plait.plan.plan import Plan
from plait.report import palette
from plait.report.breakdown import PARTS, TITLES, breakdown
from plait.report.thin import drawable
from plait.report.words import describe, kind_of
from plait.schedule.action import Kind
from plait.simulate.timeline import Event, Lane, Timeline
from plait.units import show_bytes, show_seconds

Timelines = Mapping[str, Timeline]
"""Origin (``predicted``, ``measured``) → timeline, in the order of the rows."""

_ROW = 26
"""Pixels of one row."""


def gantt(plan: Plan, timelines: Timelines) -> tuple[go.Figure, list[str]]:
    """Who does what when: a row per rank and origin on one time axis. Gives the figure and what it leaves out."""
    branches = list(dict.fromkeys(stage.branch for stage in plan.stages))
    groups: dict[tuple[str, str], dict[str, list[Any]]] = {}
    notes = []
    spans = {origin: _spans(timeline) for origin, timeline in timelines.items()}
    for index, (origin, timeline) in enumerate(timelines.items()):
        events, note = drawable(timeline)
        notes += [f"{origin}: {note}"] if note else []
        for event in events:
            key = _category(event, plan)
            columns = groups.setdefault(key, {"base": [], "x": [], "y": [], "width": [], "text": []})
            row = event.rank * (len(timelines) + 0.6) + index
            columns["base"].append(event.start * 1e3)
            columns["x"].append((event.end - event.start) * 1e3)
            columns["y"].append(row + _shift(event))
            columns["width"].append(_height(event))
            columns["text"].append(_hover(event, origin, timeline, spans))
    figure = go.Figure()
    for key in sorted(groups, key=lambda k: _legend_order(k, branches)):
        figure.add_bar(
            orientation="h",
            name=f"{key[0]} {key[1]}".strip(),
            marker={"color": _colour(key, branches), "line": {"width": 0}},
            hovertemplate="%{text}<extra></extra>",
            textposition="none",
            **groups[key],
        )
    return _gantt_layout(figure, plan, timelines), notes


_PHASES = {
    Kind.FORWARD: "forward",
    Kind.FORWARD_ONLY: "forward",
    Kind.RECOMPUTE: "recompute",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
}


def _category(event: Event, plan: Plan) -> tuple[str, str]:
    kind = kind_of(event)
    if kind is Kind.STEP:
        return "", "optimizer step"
    if kind is not None:
        return plan.stages[event.stage].branch, _PHASES[kind]
    return "", {Lane.WAIT: "waiting", Lane.SEND: "message under way", Lane.REDUCE: "gradients summed"}[event.lane]


def _legend_order(key: tuple[str, str], branches: Sequence[str]) -> tuple[int, int]:
    phases = [*dict.fromkeys(_PHASES.values()), "optimizer step", "waiting", "message under way", "gradients summed"]
    return (branches.index(key[0]) if key[0] else len(branches), phases.index(key[1]))


def _colour(key: tuple[str, str], branches: Sequence[str]) -> str:
    branch, phase = key
    if branch:
        kind = next(kind for kind, name in _PHASES.items() if name == phase)
        return palette.tone(branches.index(branch), kind)
    return {
        "optimizer step": palette.STEP,
        "waiting": palette.WAIT,
        "message under way": palette.SEND,
        "gradients summed": palette.REDUCE,
    }[phase]


def _shift(event: Event) -> float:
    return 0.42 if event.lane in (Lane.SEND, Lane.REDUCE) else 0.0


def _height(event: Event) -> float:
    return {Lane.COMPUTE: 0.74, Lane.WAIT: 0.3, Lane.SEND: 0.07, Lane.REDUCE: 0.1}[event.lane]


def _spans(timeline: Timeline) -> dict[tuple[int, str, str], float]:
    return {(e.rank, e.lane, e.label): e.end - e.start for e in timeline.events()}


def _hover(event: Event, origin: str, timeline: Timeline, spans: Mapping[str, Any]) -> str:
    lines = [
        f"<b>{describe(event, timeline.stages)}</b>",
        f"{origin} on {timeline.ranks[event.rank]}" + (f" ({event.label})" if event.stage >= 0 else ""),
        f"from {show_seconds(event.start)} for {show_seconds(event.end - event.start)}",
    ]
    for other, known in spans.items():
        seconds = known.get((event.rank, event.lane, event.label))
        if other != origin and seconds is not None:
            lines.append(f"{other}: {show_seconds(seconds)}")
    if event.nbytes:
        lines.append(show_bytes(event.nbytes))
    return "<br>".join(lines)


def _gantt_layout(figure: go.Figure, plan: Plan, timelines: Timelines) -> go.Figure:
    step = len(timelines) + 0.6
    rows = [(rank * step + i, origin) for rank in range(len(plan.devices)) for i, origin in enumerate(timelines)]
    names = [f"{plan.devices[int(y // step)]} · {origin}" for y, origin in rows]
    last = max((t.step_time for t in timelines.values()), default=0.0) * 1e3
    first = min((float(t.start.min(initial=0.0)) for t in timelines.values()), default=0.0) * 1e3
    figure.update_layout(
        barmode="overlay",
        height=max(260, int(_ROW * step * len(plan.devices)) + 130),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
        margin={"l": 10, "r": 10, "t": 10, "b": 40},
    )
    figure.update_xaxes(title="milliseconds since the step began", range=[first * 1.01, last * 1.01], zeroline=False)
    figure.update_yaxes(
        tickvals=[y for y, _ in rows],
        ticktext=names,
        autorange="reversed",
        fixedrange=True,
        showgrid=False,
        automargin=True,
        zeroline=False,
    )
    return figure


def memory(plan: Plan, timelines: Timelines) -> go.Figure:
    """Bytes held over time, a panel per rank, with the device's memory in its title."""
    count = len(plan.devices)
    columns = 1 if count == 1 else 2
    capacities = [plan.cluster.by_name[name].memory for name in plan.devices]
    titles = [f"{name} (has {show_bytes(c)})" for name, c in zip(plan.devices, capacities, strict=True)]
    figure = make_subplots(
        rows=-(-count // columns),
        cols=columns,
        subplot_titles=titles,
        vertical_spacing=0.28 / max(1, -(-count // columns)),
        horizontal_spacing=0.08,
    )
    for origin, timeline in timelines.items():
        for rank in range(count):
            mine = timeline.memory_rank == rank
            held = [*timeline.memory_bytes[mine].tolist()]
            times = [t * 1e3 for t in timeline.memory_time[mine].tolist()]
            figure.add_scatter(
                x=times + ([timeline.step_time * 1e3] if times else []),
                y=[b / 2**20 for b in held + held[-1:]],
                mode="lines",
                line={
                    "shape": "hv",
                    "width": 2,
                    "dash": "dot" if origin == "predicted" else "solid",
                    "color": palette.HUES[0][1] if origin == "predicted" else palette.HUES[1][1],
                },
                name=origin,
                legendgroup=origin,
                showlegend=rank == 0,
                hovertemplate="%{y:.3g} MiB at %{x:.4g} ms<extra>" + origin + "</extra>",
                row=rank // columns + 1,
                col=rank % columns + 1,
            )
    figure.update_yaxes(title="MiB", rangemode="tozero", title_standoff=4, automargin=True)
    figure.update_annotations(font={"size": 13})
    figure.update_layout(
        height=70 + 190 * (-(-count // columns)),
        margin={"l": 10, "r": 10, "t": 40, "b": 30},
        legend={"orientation": "h", "y": 1.06, "yanchor": "bottom"},
    )
    return figure


def where_time_goes(plan: Plan, timelines: Timelines) -> go.Figure:
    """Stacked bars per rank and origin."""
    figure = go.Figure()
    shares = {origin: breakdown(timeline) for origin, timeline in timelines.items()}
    rows = [(rank, origin) for rank in range(len(plan.devices)) for origin in timelines]
    names = [f"{plan.devices[rank]} · {origin}" for rank, origin in rows]
    for part in PARTS:
        seconds = [getattr(shares[origin][rank], part) for rank, origin in rows]
        totals = [timelines[origin].step_time for _, origin in rows]
        figure.add_bar(
            orientation="h",
            y=names,
            x=[s * 1e3 for s in seconds],
            name=TITLES[part],
            marker={"color": palette.PARTS[part]},
            customdata=[100 * s / t if t else 0 for s, t in zip(seconds, totals, strict=True)],
            hovertemplate=f"{TITLES[part]}: %{{x:.4g}} ms, %{{customdata:.1f}}%<extra>%{{y}}</extra>",
        )
    figure.update_layout(
        barmode="stack",
        height=110 + _ROW * len(rows),
        margin={"l": 10, "r": 10, "t": 10, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    figure.update_xaxes(title="milliseconds of a step")
    figure.update_yaxes(autorange="reversed", automargin=True)
    return figure


def history(log: Sequence[Mapping[str, Any]], predicted: float) -> go.Figure:
    """Loss and step time over the steps of a run."""
    figure = make_subplots(rows=1, cols=2, subplot_titles=["loss", "step time"], horizontal_spacing=0.08)
    steps = [row["step"] for row in log]
    line = {"color": palette.HUES[0][1], "width": 1.6}
    figure.add_scatter(x=steps, y=[row.get("loss") for row in log], mode="lines", line=line, name="loss", row=1, col=1)
    seconds = [row.get("step_seconds", 0.0) * 1e3 for row in log]
    figure.add_scatter(x=steps, y=seconds, mode="lines", line=line, name="measured", row=1, col=2)
    figure.add_hline(y=predicted * 1e3, line={"dash": "dot", "color": palette.HUES[1][1]}, row=1, col=2)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="ms", rangemode="tozero", row=1, col=2)
    figure.update_annotations(font={"size": 13})
    figure.update_layout(height=300, showlegend=False, margin={"l": 10, "r": 10, "t": 40, "b": 40})
    return figure

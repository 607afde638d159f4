"""Tables for the terminal."""

from collections.abc import Mapping

from rich.table import Table

from plait.plan.plan import Plan
from plait.report.breakdown import PARTS, TITLES, breakdown
from plait.simulate.timeline import Lane, Timeline
from plait.units import show_bytes, show_seconds

_SHADES = {"F": "░", "N": "░", "R": "▒", "B": "▓", "I": "▓", "W": "█", "STEP": "S"}


def against(predicted: Timeline, measured: Timeline) -> Table:
    """Prediction against measurement."""
    table = Table("", "predicted", "measured", "off by")
    error = predicted.step_time / measured.step_time - 1 if measured.step_time else 0.0
    table.add_row("step time", show_seconds(predicted.step_time), show_seconds(measured.step_time), f"{error:+.1%}")
    bubbles = predicted.bubble_ratio, measured.bubble_ratio
    table.add_row("bubble ratio", f"{bubbles[0]:.3f}", f"{bubbles[1]:.3f}", f"{bubbles[0] - bubbles[1]:+.3f}")
    return table


def per_rank(timeline: Timeline) -> Table:
    """Where each rank's time goes, and its peak memory."""
    table = Table("rank", "device", *(TITLES[part] for part in PARTS), "peak memory")
    for rank, share in enumerate(breakdown(timeline)):
        times = [show_seconds(getattr(share, part)) for part in PARTS]
        table.add_row(str(rank), timeline.ranks[rank], *times, show_bytes(float(timeline.peak_bytes[rank])))
    return table


def plan_summary(plan: Plan) -> Table:
    """Which stage is where."""
    table = Table("stage", "layers", "ranks", "micro-batches", "memory of weights and optimizer")
    for stage in plan.stages:
        layers = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} … {stage.layers[-1]}"
        batches = " / ".join(
            r.micro_batches if isinstance(r.micro_batches, str) else ",".join(map(str, r.micro_batches))
            for r in stage.replicas
        )
        nbytes = stage.parameter_bytes + stage.gradient_bytes + stage.optimizer_bytes
        ranks = ", ".join(f"{r.rank} ({plan.devices[r.rank]})" for r in stage.replicas)
        table.add_row(stage.name, f"{layers} ({len(stage.layers)})", ranks, batches, show_bytes(nbytes))
    return table


def compare(timelines: Mapping[str, Timeline]) -> Table:
    """Several plans or runs: step time, its ratio to the best, bubble ratio, most memory on a rank."""
    table = Table("", "step time", "ratio to best", "bubble ratio", "peak memory")
    best = min((t.step_time for t in timelines.values()), default=0.0)
    for name, timeline in timelines.items():
        ratio = f"{timeline.step_time / best:.3f}" if best else "–"
        peak = show_bytes(float(timeline.peak_bytes.max(initial=0.0)))
        table.add_row(name, show_seconds(timeline.step_time), ratio, f"{timeline.bubble_ratio:.3f}", peak)
    return table


def render_rows(timeline: Timeline, width: int = 72) -> list[str]:
    """A line per rank: ░ forward, ▓ backward, █ weight gradient, S step, blank idle."""
    rows = [[" "] * width for _ in timeline.ranks]
    scale = width / timeline.step_time if timeline.step_time else 0.0
    for event in timeline.events():
        if event.lane is Lane.COMPUTE:
            letter = event.label if event.label == "STEP" else event.label.lstrip("0123456789")[:1]
            first, last = int(event.start * scale), max(int(event.start * scale) + 1, round(event.end * scale))
            for place in range(max(0, first), min(width, last)):
                rows[event.rank][place] = _SHADES.get(letter, "░")
    return ["".join(row) for row in rows]

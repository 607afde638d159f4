"""The report's parts that need no chart: headline, cluster and tables, as HTML."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby

from plait.cluster.spec import Device
from plait.plan.plan import Plan
from plait.report.breakdown import mean_seconds
from plait.report.figures import Timelines
from plait.schedule.action import Kind
from plait.units import show_bytes, show_rate, show_seconds

BACKWARDS = (Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
FORWARDS = (Kind.FORWARD, Kind.FORWARD_ONLY)


def headline(plan: Plan, timelines: Timelines, summary: Mapping[str, str]) -> str:
    """The figures that matter most, as tiles."""
    tiles = [*_step_tiles(plan, timelines), *((name, value, "") for name, value in summary.items())]
    return '<div class="tiles">' + "".join(_tile(*tile) for tile in tiles) + "</div>"


def _tile(name: str, value: str, note: str) -> str:
    small = f"<small>{escape(note)}</small>" if note else ""
    return f'<div class="tile"><span>{escape(name)}</span><strong>{escape(value)}</strong>{small}</div>'


def _step_tiles(plan: Plan, timelines: Timelines) -> Iterable[tuple[str, str, str]]:
    predicted, measured = timelines["predicted"], timelines.get("measured")
    real = measured or predicted
    if measured is None:
        yield "step time", show_seconds(predicted.step_time), "predicted"
        yield "bubble ratio", f"{predicted.bubble_ratio:.1%}", "predicted"
    else:
        error = predicted.step_time / measured.step_time - 1 if measured.step_time else 0.0
        note = f"predicted {show_seconds(predicted.step_time)} ({error:+.1%})"
        yield "step time", show_seconds(measured.step_time), note
        yield "bubble ratio", f"{measured.bubble_ratio:.1%}", f"predicted {predicted.bubble_ratio:.1%}"
    speed = plan.global_batch / real.step_time if real.step_time else 0.0
    yield "samples per second", f"{speed:.4g}", f"{plan.global_batch} samples a step"


def cluster(plan: Plan) -> str:
    """Sites, their devices and the stages on them, and the links."""
    devices = [plan.cluster.by_name[name] for name in plan.devices]
    ranked = sorted(enumerate(devices), key=lambda pair: (pair[1].site, pair[1].node))
    sites = []
    for site, inside in groupby(ranked, key=lambda pair: pair[1].site):
        cards = "".join(_card(plan, rank, device) for rank, device in sorted(inside, key=lambda pair: pair[0]))
        sites.append(f'<div class="site"><h3>{escape(site)}</h3><div class="cards">{cards}</div></div>')
    return f'<div class="sites">{"".join(sites)}</div>{_links(plan, devices)}'


def _card(plan: Plan, rank: int, device: Device) -> str:
    branches = list(dict.fromkeys(stage.branch for stage in plan.stages))
    rows = "".join(
        f'<li class="hue{branches.index(stage.branch) % 6}">{escape(stage.name)}'
        f"<small>{_count(len(stage.layers), 'layer')}</small></li>"
        for stage in plan.stages
        if any(r.rank == rank for r in stage.replicas)
    )
    kind = f"{device.type}, {show_bytes(device.memory)}"
    return (
        f'<div class="card"><h4>rank {rank}<small>{escape(device.name)}</small></h4>'
        f"<p>{escape(kind)}</p><ul>{rows}</ul></div>"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _links(plan: Plan, devices: Sequence[Device]) -> str:
    seen: dict[str, str] = {}
    for a in devices:
        for b in devices:
            ends = f"{a.site} – {b.site}" if a.site < b.site else f"inside {a.site}" if a.site == b.site else ""
            if ends and a.name != b.name:
                link = plan.cluster.link(a, b)
                seen.setdefault(ends, f"{show_rate(link.bandwidth)}, {show_seconds(link.latency)}")
    items = "".join(f"<li><b>{escape(ends)}</b> {escape(text)}</li>" for ends, text in sorted(seen.items()))
    return f'<ul class="links">{items}</ul>'


def stages(plan: Plan, timelines: Timelines) -> str:
    """A row per stage: what it is, where it is, and mean seconds of its actions."""
    means = {origin: mean_seconds(timeline) for origin, timeline in timelines.items()}
    head = ["stage", "branch", "layers", "ranks", "scope"]
    head += [f"{phase}, {origin}" for phase in ("forward", "backward") for origin in timelines]
    rows = []
    for index, stage in enumerate(plan.stages):
        times = [_mean(means[origin], index, kinds) for kinds in (FORWARDS, BACKWARDS) for origin in timelines]
        ranks = ", ".join(str(r.rank) for r in stage.replicas)
        rows.append([stage.name, stage.branch, _layers(stage.layers), ranks, str(stage.scope), *times])
    return table(head, rows, numeric=len(head) - 5)


def _layers(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]} ({len(names)})"


def _mean(means: Mapping[tuple[int, Kind], float], stage: int, kinds: Iterable[Kind]) -> str:
    found = [means[stage, kind] for kind in kinds if (stage, kind) in means]
    return show_seconds(sum(found)) if found else "–"


def transfers(plan: Plan) -> str:
    """A row per edge between stages."""
    rows = []
    for transfer in plan.transfers:
        source, target = (plan.stages[plan.stage_index[name]] for name in (transfer.source, transfer.target))
        local = {r.rank for r in source.replicas} == {r.rank for r in target.replicas}
        size = show_bytes(transfer.bytes_per_sample * plan.global_batch + transfer.bytes_fixed)
        back = show_bytes(transfer.gradient_bytes_per_sample * plan.global_batch + transfer.gradient_bytes_fixed)
        rows.append(
            [
                f"{transfer.source} → {transfer.target}",
                ", ".join(transfer.values),
                "on the same device" if local else transfer.codec,
                size,
                back if transfer.gradient else "–",
            ]
        )
    return table(["edge", "values", "as", "forward, a step", "gradients, a step"], rows, numeric=2)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: int = 0) -> str:
    """An HTML table; the last ``numeric`` columns are figures."""
    first = len(head) - numeric

    def line(cells: Sequence[str], tag: str) -> str:
        parts = (f"<{tag}{' class=num' if i >= first else ''}>{escape(cell)}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table><thead>{line(head, "th")}</thead><tbody>{body}</tbody></table></div>'

"""Says why no plan fits: what is short by how much on which device, and what would be nearest to fit."""

from collections.abc import Sequence

from plait.cost.memory import fixed_bytes
from plait.plan.candidate import made
from plait.plan.compile import prices_of
from plait.plan.layout import Layout, lay_out
from plait.plan.plan import Plan
from plait.plan.simulate import simulate
from plait.plan.strands import Setting, Work
from plait.units import show_bytes

FACTORS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0, 1e4, 1e6)
"""Times of the memory there is that are tried until something fits."""


def explain(work: Work, heavy: Sequence[str], settings: Sequence[Setting]) -> str:
    """Why none of ``settings``, the thriftiest there are, fits; in the nearest one, which device lacks how much."""
    fixed = fixed_bytes(work.graph.parameters().values(), work.optimizer_bytes).total
    there = sum(d.memory for d in work.cluster.devices)
    whole = (
        f"weights, gradients and optimizer state take {show_bytes(fixed)}, "
        f"the {len(work.cluster.devices)} devices have {show_bytes(there)}"
    )
    for factor in FACTORS:
        layouts = [x for s in settings if (x := lay_out(work, heavy, s, room=factor)) is not None]
        if layouts:
            return f"no plan fits the devices' memory: {whole}. {_nearest(work, layouts)}"
    return f"no plan fits the devices' memory: {whole}"


def _nearest(work: Work, layouts: Sequence[Layout]) -> str:
    """The layout that lacks least, in words."""
    tried = [_lack(work, x) for x in sorted(layouts, key=lambda x: x.guess)[:12]]
    ratio, _, words = min(tried)
    if ratio <= 1:
        return f"{words} Leave the schedule or every_device free, and it may fit."
    return f"{words} It would fit with {ratio:.2f} times the memory there, or spread over more devices."


def _lack(work: Work, layout: Layout) -> tuple[float, float, str]:
    """(need by capacity, step time, words) of the rank that lacks most, recomputing all."""
    plan = made(work, layout, "sequential" if len(layout.devices) == 1 else "gpipe")
    timeline, capacity = simulate(plan), prices_of(plan).capacity
    rank = max(range(len(capacity)), key=lambda r: timeline.peak_bytes[r] / capacity[r])
    need = float(timeline.peak_bytes[rank])
    words = (
        f"Nearest, with recompute and micro-batches of {max(plan.micro_batches)}: {_stages(plan, rank)} on "
        f"{plan.devices[rank]} ({work.cluster.by_name[plan.devices[rank]].type}) needs {show_bytes(need)}, it has "
        f"{show_bytes(capacity[rank])}: {show_bytes(max(need - capacity[rank], 0.0))} short."
    )
    return need / capacity[rank], timeline.step_time, words


def _stages(plan: Plan, rank: int) -> str:
    """The stages of a rank, those first that keep most."""
    held = [s for s in plan.stages if any(r.rank == rank for r in s.replicas)]
    held.sort(key=lambda s: -(s.parameter_bytes + s.gradient_bytes + s.optimizer_bytes))
    names = ", ".join(f"{s.name} ({s.layers[0]} to {s.layers[-1]})" for s in held[:2])
    return f"stage {names}" + (f" and {len(held) - 2} more" if len(held) > 2 else "")

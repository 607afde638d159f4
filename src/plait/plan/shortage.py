"""Says why no plan fits: what is short by how much on which device, and what would be nearest to fit."""

from collections.abc import Sequence

from plait.cost.memory import fixed_bytes
from plait.errors import PlanError
from plait.plan.candidate import made
from plait.plan.compile import prices_of
from plait.plan.layout import Layout, lay_out
from plait.plan.simulate import simulate
from plait.plan.strands import Setting, Work
from plait.simulate.memory import check_memory
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
        layouts = [x for s in settings[:60] if (x := lay_out(work, heavy, s, room=factor)) is not None]
        if layouts:
            return f"no plan fits the devices' memory: {whole}. {_nearest(work, layouts)}"
    return f"no plan fits the devices' memory: {whole}"


def _nearest(work: Work, layouts: Sequence[Layout]) -> str:
    """The layout that lacks least, in words."""
    ratio, _, words = min(_lack(work, x) for x in sorted(layouts, key=lambda x: x.guess)[:12])
    if ratio <= 1:
        return f"{words}. Leave the schedule or every_device free, and it may fit"
    return f"{words}. It would fit with {ratio:.2f} times the memory there, or spread over more devices"


def _lack(work: Work, layout: Layout) -> tuple[float, float, str]:
    """(need by capacity, step time, words) of the rank that lacks most, recomputing all."""
    plan = made(work, layout, "sequential" if len(layout.devices) == 1 else "gpipe")
    timeline, prices = simulate(plan), prices_of(plan)
    ratio, rank = max((peak / prices.capacity[r], r) for r, peak in enumerate(timeline.peak_bytes))
    held = [s for s in plan.stages if any(r.rank == rank for r in s.replicas)]
    stages = ", ".join(f"{s.name} ({s.layers[0]} to {s.layers[-1]})" for s in held)
    try:
        check_memory(timeline, prices)
        words = "there is a layout that fits"
    except PlanError as error:
        words = (
            f"Nearest, with recompute and micro-batches of {max(plan.micro_batches)}: {error}. That device "
            f"({work.cluster.by_name[plan.devices[rank]].type}) would hold {stages}"
        )
    return float(ratio), timeline.step_time, words

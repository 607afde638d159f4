"""The planner: lays the model out in many ways by dynamic programming, simulates the best and improves them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from plait.cluster.spec import Cluster
from plait.cost.costs import Costs
from plait.errors import PlanError, ScheduleError
from plait.model.graph import BranchGraph
from plait.plan.candidate import judged, made, step_time
from plait.plan.improve import Merit, improve, relaxed
from plait.plan.layout import Layout, lay_out
from plait.plan.plan import Plan
from plait.plan.settings import OVERLAPS, Request, Way, check_request, settings_of, splits, ways
from plait.plan.shortage import explain
from plait.plan.simulate import quick_merit
from plait.plan.strands import Setting, Work, heavy_branches

Progress = Callable[[int, int, str], None]
"""Called with (plans judged, plans to judge, the best one's schedule)."""

WAYS = 10
"""Shapes with directions that are tried with every split into micro-batches, the best by guess."""
LAYOUTS = 100
"""Layouts that are simulated under a quick schedule, the best by guess."""
IMPROVED = 3
TRIALS = 30
"""The quickest of these are improved by local search, each with so many trials."""
FINALISTS = 6
"""Of these, the layouts that are given the best schedule found for them."""
SIMULATED_ACTIONS, IMPROVED_ACTIONS, FINAL_ACTIONS = 40_000, 12_000, 5_000
"""Caps on the same by actions, which is what they cost: large models and many micro-batches get fewer tries."""


def plan(  # noqa: PLR0913
    graph: BranchGraph,
    cluster: Cluster,
    costs: Costs,
    *,
    global_batch: int,
    micro_batch: int | None = None,
    schedule: str | None = None,
    optimizer_bytes_per_parameter_byte: float = 2.0,
    every_device: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """The plan of least predicted step time that was found, with its prediction.

    Args:
        graph: the model.
        cluster: the devices; the plan may leave some out.
        costs: what layers cost on them.
        global_batch: samples of one step.
        micro_batch: samples of a micro-batch; several are tried by default.
        schedule: by name; the best for the layout by default.
        optimizer_bytes_per_parameter_byte: 2 for Adam.
        every_device: refuse plans that leave a device out.
        progress: told of each plan that is judged.

    Raises:
        PlanError: nothing fits the devices' memory (it says what is short), or the request contradicts itself.
        CostError: a layer has no price on a device.
    """
    request = Request(global_batch, micro_batch, schedule, every_device)
    check_request(request, cluster)
    work = Work(graph, cluster, costs, optimizer_bytes_per_parameter_byte)
    found = _search(work, request, progress)
    if found is None:
        raise PlanError(_refusal(work, request))
    return found


def _search(work: Work, request: Request, progress: Progress | None) -> Plan | None:
    """The best plan, if any fits. Recomputing is tried where holding activations is tight.

    Raises PlanError where the schedule asked for suits no layout.
    """
    best: Plan | None = None
    unsuited: list[str] = []
    for recompute in (False, True):
        layouts, tight = _layouts(work, request, recompute=recompute)
        ranked = _ranked(work, layouts, request, unsuited)
        if layouts and not ranked:
            raise PlanError(f"schedule {request.schedule} suits no layout: {unsuited[0]}")
        found = _best(work, ranked, request, progress)
        if found is not None and (best is None or step_time(found) < step_time(best)):
            best = found
        if best is not None and not tight:
            break
    return best


def _refusal(work: Work, request: Request) -> str:
    smallest = splits(request)[-1]
    everything = ways(work.graph, work.cluster, request)
    settings = _settings(everything, [smallest], OVERLAPS[:1], recompute=True)
    if not settings:
        return (
            f"schedule {request.schedule} suits no layout of these {len(work.cluster.devices)} devices and "
            f"{len(smallest)} micro-batches; it needs an even number of both"
        )
    return explain(work, _heavy(work, request), settings) + _with_other_micro_batches(work, request)


def _with_other_micro_batches(work: Work, request: Request) -> str:
    """Whether something fits where the micro-batches may be smaller than asked for."""
    if request.micro_batch is None or request.micro_batch == 1:
        return ""
    found = _search(work, replace(request, micro_batch=None), None)
    if found is None or max(found.micro_batches) >= request.micro_batch:
        return ""
    return f"; with micro_batch: {max(found.micro_batches)} it fits as it is"


def _heavy(work: Work, request: Request) -> tuple[str, ...]:
    fastest = max(work.cluster.devices, key=lambda d: d.speed)
    return heavy_branches(work, fastest, splits(request)[-1][0])


def _layouts(work: Work, request: Request, *, recompute: bool) -> tuple[list[Layout], bool]:
    """The most promising layouts, by guess, and whether memory ruled out any."""
    heavy, sizes = _heavy(work, request), splits(request)
    everything = ways(work.graph, work.cluster, request)
    tried: list[Layout | None] = []
    for split in dict.fromkeys((sizes[len(sizes) // 2], sizes[-1])):  # the smallest, where the middle one fits nowhere
        tried += _laid(work, heavy, _settings(everything, [split], OVERLAPS[:1], recompute=recompute), request)
        if any(tried):
            break
    chosen = _promising([x for x in tried if x is not None], _by_way, WAYS)
    kept = list(dict.fromkeys(Way(x.setting.shape, x.setting.up) for x in chosen))
    tried += _laid(work, heavy, _settings(kept, sizes, OVERLAPS, recompute=recompute), request)
    found = _promising([x for x in tried if x is not None], _by_split, LAYOUTS)
    return _affordable(found, SIMULATED_ACTIONS, least=12), None in tried


def _settings(
    given: Sequence[Way], sizes: Sequence[tuple[int, ...]], overlaps: Sequence[float], *, recompute: bool
) -> list[Setting]:
    found = [
        settings_of(way, split, overlap, recompute=recompute)
        for way in given
        for split in sizes
        for overlap in (overlaps if len(way.shape.slots) > 1 else overlaps[:1])
    ]
    return [setting for setting in found if setting is not None]


def _laid(work: Work, heavy: Sequence[str], settings: Iterable[Setting], request: Request) -> list[Layout | None]:
    """Layouts without those that leave out a device against the request; None for what doesn't fit."""
    laid = [lay_out(work, heavy, setting) for setting in settings]
    return [x for x in laid if x is None or not request.every_device or len(x.devices) == len(work.cluster.devices)]


def _promising(layouts: Sequence[Layout], kind: Callable[[Layout], object], count: int) -> list[Layout]:
    """The best by guess of each kind, for a guess compares like with like more surely, and then the best of all."""
    ranked = sorted(layouts, key=lambda x: x.guess)
    different: dict[object, Layout] = {}
    firsts: dict[object, Layout] = {}
    for layout in ranked:
        different.setdefault((layout.devices, layout.stages, layout.setting.sizes), layout)
        firsts.setdefault(kind(layout), layout)
    return list(dict.fromkeys([*firsts.values(), *list(different.values())[:count]]))


def _by_way(layout: Layout) -> object:
    shape = layout.setting.shape
    return shape.chimera, shape.replicas, len(shape.slots), bool(layout.setting.up)


def _by_split(layout: Layout) -> object:
    shape = layout.setting.shape
    return shape.chimera, shape.replicas > 1, len(layout.setting.sizes)


def _affordable(layouts: Sequence[Layout], actions: int, least: int) -> list[Layout]:
    """The first layouts whose steps have so many actions together, at least ``least``."""
    spent = list(accumulate(_actions(x) for x in layouts))
    return [x for i, x in enumerate(layouts) if i < least or spent[i] <= actions]


def _actions(layout: Layout) -> int:
    return 2 * len(layout.setting.sizes) * len(layout.stages)


def _ranked(work: Work, layouts: Sequence[Layout], request: Request, unsuited: list[str]) -> list[Layout]:
    """Layouts by their merit under a schedule that is quickly made, the first of them improved.

    ``unsuited`` gathers why the schedule doesn't suit some.
    """

    def judge(layout: Layout) -> Merit:
        try:
            return quick_merit(made(work, layout, _quick_schedule(layout, request)))
        except ScheduleError as error:
            unsuited.append(str(error))
            return math.inf, math.inf

    judged_layouts = sorted((judge(x), i) for i, x in enumerate(layouts))
    ranked = [layouts[i] for (_, seconds), i in judged_layouts if seconds < math.inf]
    better = []
    for layout in ranked[:IMPROVED]:
        trials = min(TRIALS, IMPROVED_ACTIONS // _actions(layout))
        better.append(relaxed(improve(work, layout, judge, trials=trials), judge))
    return list(dict.fromkeys([*better, *ranked]))


def _quick_schedule(layout: Layout, request: Request) -> str:
    wanted = _schedule(layout, request)
    return "gpipe" if wanted.replace("-", "_") == "branch_aware" else wanted


def _schedule(layout: Layout, request: Request) -> str:
    """The schedule asked for, or the best for the layout: branch_aware is never worse than gpipe and 1f1b."""
    if request.schedule is not None:
        return request.schedule
    if layout.setting.shape.chimera:
        return "chimera"
    return "branch_aware" if len(layout.devices) > 1 else "sequential"


def _best(work: Work, ranked: Sequence[Layout], request: Request, progress: Progress | None) -> Plan | None:
    """The best of the first few that fit."""
    found: list[Plan] = []
    spent = 0
    for layout in ranked:
        if len(found) == FINALISTS or spent > (FINAL_ACTIONS if found else 2 * FINAL_ACTIONS):
            break
        spent += _actions(layout)
        try:
            found.append(judged(work, layout, _schedule(layout, request)))
        except PlanError:  # it doesn't fit: the next one may, and ``explain`` tells if none does
            continue
        if progress:
            progress(len(found), min(FINALISTS, len(ranked)), min(found, key=step_time).schedule.name)
    return min(found, key=step_time, default=None)

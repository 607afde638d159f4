"""The planner: tries shapes, directions and micro-batches, cuts each by dynamic programming, simulates the best."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from plait.cluster.spec import Cluster, Device
from plait.cost.costs import Costs
from plait.errors import PlanError, ScheduleError
from plait.model.graph import BranchGraph
from plait.plan.assemble import assemble
from plait.plan.layout import Layout, lay_out
from plait.plan.orders import Shape, device_sets, opposing, orders, pipelines, replicated
from plait.plan.plan import Plan, SchedulePlan
from plait.plan.schedules import NAMES
from plait.plan.shortage import explain
from plait.plan.simulate import predict, simulate
from plait.plan.strands import Setting, Work, heavy_branches

Progress = Callable[[int, int, str], None]
"""Called with (plans judged, plans to judge, the best one's schedule)."""

MOST_DEVICES = 64
LAYOUTS = 40
"""Layouts that are simulated under a quick schedule, the best by guess."""
FINALISTS = 6
"""Of these, the layouts that are given the best schedule found for them."""
OVERLAPS = (0.0, 0.75)
"""Shares of the messages' time taken to hide behind compute; the simulator tells which cuts were right."""


@dataclass(frozen=True)
class Request:
    """What a plan must do, and what its choice is limited to."""

    global_batch: int
    micro_batch: int | None = None
    schedule: str | None = None
    every_device: bool = False


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
        schedule: by name; several are tried by default.
        optimizer_bytes_per_parameter_byte: 2 for Adam.
        every_device: refuse plans that leave a device out.
        progress: told of each plan that is judged.

    Raises:
        PlanError: nothing fits the devices' memory (it says what is short), or the request contradicts itself.
        CostError: a layer has no price on a device.
    """
    request = Request(global_batch, micro_batch, schedule, every_device)
    _check_request(request, cluster)
    work = Work(graph, cluster, costs, optimizer_bytes_per_parameter_byte)
    reasons: list[str] = []
    for recompute in (False, True):
        layouts = _layouts(work, request, recompute=recompute)
        best = _best(work, _ranked(work, layouts, request), request, reasons, progress)
        if best is not None:
            return best
    raise PlanError(explain(work, list(_settings(work, request, recompute=True)), reasons))


def _check_request(request: Request, cluster: Cluster) -> None:
    if request.global_batch < 1:
        raise PlanError(f"global_batch: {request.global_batch} must be at least 1")
    if request.micro_batch is not None and not 1 <= request.micro_batch <= request.global_batch:
        raise PlanError(
            f"micro_batch: {request.micro_batch} must be between 1 and the global batch, {request.global_batch}"
        )
    if request.schedule is not None and request.schedule.replace("-", "_") not in NAMES:
        raise PlanError(f"schedule: {request.schedule!r} is not known; it can be {', '.join(NAMES)}")
    if len(cluster.devices) > MOST_DEVICES:
        raise PlanError(f"{len(cluster.devices)} devices: this planner searches among at most {MOST_DEVICES}")


def _layouts(work: Work, request: Request, *, recompute: bool) -> list[Layout]:
    """The most promising layouts, by guess; of each shape kind and number of micro-batches at least the best."""
    device = max(work.cluster.devices, key=lambda d: d.speed)
    heavy = heavy_branches(work, device, _splits(request)[-1][0])
    found: dict[tuple[object, ...], Layout] = {}
    for setting in _settings(work, request, recompute=recompute):
        layout = lay_out(work, heavy, setting)
        if layout is None or (request.every_device and len(layout.devices) < len(work.cluster.devices)):
            continue
        key = layout.devices, layout.stages, setting.sizes, setting.shape.chimera
        found.setdefault(key, layout)
    ranked = sorted(found.values(), key=lambda x: x.guess)
    firsts: dict[tuple[object, ...], Layout] = {}
    for layout in ranked:
        shape = layout.setting.shape
        firsts.setdefault((shape.chimera, shape.replicas > 1, len(layout.setting.sizes)), layout)
    return list(dict.fromkeys([*ranked[:LAYOUTS], *firsts.values()]))


def _settings(work: Work, request: Request, *, recompute: bool) -> Iterator[Setting]:
    """All settings of a few splits; the middle split chooses the orders that the others are tried with."""
    splits = _splits(request)
    for shape in _shapes(work.cluster, request):
        for sizes in splits:
            shares = _shares(shape, sizes)
            if shares is None:
                continue
            for up in _directions(work.graph, shape):
                for overlap in OVERLAPS if len(shape.slots) > 1 else OVERLAPS[:1]:
                    yield Setting(shape, shares, sizes, up, recompute, overlap)


def _splits(request: Request) -> list[tuple[int, ...]]:
    """Micro-batch sizes to try, fewest micro-batches first."""
    if request.micro_batch is not None:
        whole, rest = divmod(request.global_batch, request.micro_batch)
        return [(request.micro_batch,) * whole + ((rest,) if rest else ())]
    counts = [2**k for k in range(7) if 2**k <= request.global_batch]
    return [_even(request.global_batch, count) for count in counts]


def _even(samples: int, count: int) -> tuple[int, ...]:
    each, more = divmod(samples, count)
    return (each + 1,) * more + (each,) * (count - more)


def _shapes(cluster: Cluster, request: Request) -> Iterator[Shape]:
    sets = device_sets(cluster)[:1] if request.every_device else device_sets(cluster)
    for devices in sets:
        ways = orders(devices)
        wanted = request.schedule
        for way in ways:
            if wanted != "chimera":
                yield pipelines(way)
        if len(devices) == 1:
            continue
        if wanted in (None, "chimera") and not len(devices) % 2:
            yield from (opposing(way) for way in ways[:2])
        if wanted != "chimera":
            for way in ways[:2]:
                yield from replicated(way)


def _directions(graph: BranchGraph, shape: Shape) -> Iterable[frozenset[str]]:
    """Which branches run up: none, or every other one."""
    yield frozenset()
    if len(shape.slots) > 1 and not shape.chimera and len(graph.branches) > 1:
        branches = list(graph.branches)
        yield frozenset(branches[1::2])


def _shares(shape: Shape, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Micro-batches of each replica, in proportion to its devices' speed; None where there are too few."""
    count, replicas = len(sizes), shape.replicas
    if replicas == 1:
        return (tuple(range(count)),)
    if count < replicas or (shape.chimera and count % 2):
        return None
    speed = [_speed([slot[g] for slot in shape.slots]) for g in range(replicas)]
    given = [1] * replicas
    for _ in range(count - replicas):  # the next one goes where it would be done first
        given[min(range(replicas), key=lambda g: (given[g] + 1) / speed[g])] += 1
    if shape.chimera:
        given = [count // 2] * 2
    starts = [sum(given[:g]) for g in range(replicas)]
    return tuple(tuple(range(a, a + n)) for a, n in zip(starts, given, strict=True))


def _speed(devices: Sequence[Device]) -> float:
    """What a replica does per second, up to a factor: its slowest device counts, since cuts are common."""
    return min(d.speed for d in devices)


def _ranked(work: Work, layouts: Sequence[Layout], request: Request) -> list[Layout]:
    """Layouts by their simulated step time under a schedule that is quickly made; memory is judged later."""
    timed = []
    for layout in layouts:
        try:
            timed.append((simulate(_made(work, layout, _quick_schedule(layout, request))).step_time, layout))
        except ScheduleError:  # the schedule doesn't suit this layout
            continue
    return [layout for _, layout in sorted(timed, key=lambda x: x[0])]


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


def _best(
    work: Work, ranked: Sequence[Layout], request: Request, reasons: list[str], progress: Progress | None
) -> Plan | None:
    """The best of the first few that fit; ``reasons`` gathers why others don't."""
    best: Plan | None = None
    fitting = 0
    for layout in ranked:
        try:
            candidate = judged(work, layout, _schedule(layout, request))
        except (PlanError, ScheduleError) as error:  # too large, or a schedule that doesn't suit: the next may
            reasons.append(str(error))
            continue
        fitting += 1
        if best is None or _step_time(candidate) < _step_time(best):
            best = candidate
        if progress:
            progress(fitting, min(FINALISTS, len(ranked)), best.schedule.name)
        if fitting == FINALISTS:
            break
    return best


def judged(work: Work, layout: Layout, schedule: str) -> Plan:
    """The layout's plan with its prediction; raises PlanError where it can't run or doesn't fit."""
    made = _made(work, layout, schedule)
    return made.model_copy(update={"predicted": predict(made)})


def _made(work: Work, layout: Layout, schedule: str) -> Plan:
    return assemble(
        work.graph,
        work.cluster,
        layout.devices,
        layout.stages,
        layout.setting.sizes,
        SchedulePlan(name=schedule),
        costs=work.costs,
        optimizer_bytes_per_parameter_byte=work.optimizer_bytes,
    )


def _step_time(plan: Plan) -> float:
    return plan.predicted.step_time if plan.predicted else float("inf")

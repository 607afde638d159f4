"""Memory over a step: what each rank holds when, and whether it fits."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from plait.errors import PlanError
from plait.schedule.action import ALL, Action, Kind
from plait.schedule.lower import trains
from plait.schedule.program import Op, Programs
from plait.simulate.flat import price_of
from plait.simulate.prices import Prices, StagePrice
from plait.simulate.timeline import LANES, Lane, Timeline
from plait.units import show_bytes

Sample = tuple[int, float, float]
"""(rank, seconds, bytes held from then on)."""


def held_over_time(programs: Programs, prices: Prices, begin: list[float], end: list[float]) -> Iterator[Sample]:
    """Bytes after each change: fixed ones, activations from F or R to the end of B or W, inputs from N to R.

    ``begin`` and ``end`` have an entry per instruction, ranks one after another.
    """
    placement = programs.placement
    training = trains(programs.schedule)
    i = -1
    for rank, program in enumerate(programs.ranks):
        held = prices.fixed_bytes[rank]
        yield rank, 0.0, held
        for instruction in program:
            i += 1
            action = instruction.action
            if instruction.op is not Op.COMPUTE or not action:
                continue
            if not (training and placement.stages[action.stage].backward):
                continue
            price = price_of(placement, prices, rank, action.stage, action.micro_batch)
            for time, change in zip((begin[i], end[i]), changes(action.kind, price), strict=True):
                if change:
                    held += change
                    yield rank, time, held


def changes(kind: Kind, price: StagePrice) -> tuple[float, float]:
    """Bytes that an action of a stage with a backward adds when it begins and when it ends."""
    if kind is Kind.FORWARD:
        return price.held_bytes, 0.0
    if kind is Kind.FORWARD_ONLY:
        return price.kept_bytes, 0.0
    if kind is Kind.RECOMPUTE:
        return price.held_bytes - price.kept_bytes, 0.0
    if kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT):
        return 0.0, -price.held_bytes
    return 0.0, 0.0


def check_memory(timeline: Timeline, prices: Prices, names: Sequence[str] = ()) -> None:
    """Raise PlanError if a rank of a predicted timeline holds more than it has.

    It names the rank furthest over, when that is, the stage that holds most, and whether recomputing would help.
    ``names`` of the ranks: the timeline's if none are given.
    """
    over = [peak - prices.capacity[rank] for rank, peak in enumerate(timeline.peak_bytes)]
    rank = max(range(len(over)), key=over.__getitem__, default=0)
    if over and over[rank] > 0:
        raise PlanError(_too_small(timeline, prices, rank, (names or timeline.ranks)[rank]))


def _too_small(timeline: Timeline, prices: Prices, rank: int, name: str) -> str:
    peak, capacity = float(timeline.peak_bytes[rank]), prices.capacity[rank]
    said = f"rank {rank} ({name}) needs {show_bytes(peak)}"
    if prices.fixed_bytes[rank] > capacity:
        return (
            f"{said}, it has {show_bytes(capacity)}; weights, gradients and optimizer state alone take "
            f"{show_bytes(prices.fixed_bytes[rank])}: give it fewer layers"
        )
    at, holding = _peak(timeline, prices, rank)
    held: dict[int, float] = defaultdict(float)
    for action, price in holding.items():
        held[action.stage] += price.kept_bytes if action.kind is Kind.FORWARD_ONLY else price.held_bytes
    stage = max(held, key=held.__getitem__)
    return (
        f"{said} at {at}, it has {show_bytes(capacity)}; stage {timeline.stages[stage]} holds "
        f"{show_bytes(held[stage])} of activations; {_advice(peak, capacity, holding)}"
    )


def _peak(timeline: Timeline, prices: Prices, rank: int) -> tuple[str, dict[Action, StagePrice]]:
    """The action that begins at the rank's peak, and the F, N and R whose memory is held then."""
    of_rank = timeline.memory_rank == rank
    time = timeline.memory_time[of_rank][timeline.memory_bytes[of_rank].argmax()]
    chosen = (timeline.rank == rank) & (timeline.lane == LANES.index(Lane.COMPUTE)) & (timeline.start <= time)
    at = ""
    holding: dict[tuple[int, int], tuple[Action, StagePrice]] = {}
    for index in chosen.nonzero()[0]:
        action = Action.parse(timeline.label[index])
        key = action.stage, action.micro_batch
        if action.kind in (Kind.FORWARD, Kind.FORWARD_ONLY, Kind.RECOMPUTE):
            at = str(action)
            holding[key] = action, prices.stages[action.stage, rank, _samples(timeline, action.micro_batch)]
        elif action.kind in (Kind.BACKWARD, Kind.WEIGHT_GRADIENT) and timeline.end[index] <= time:
            holding.pop(key, None)
    return at, dict(holding.values())


def _samples(timeline: Timeline, micro_batch: int) -> int:
    sizes: list[int] = timeline.meta["micro_batches"]
    return sum(sizes) if micro_batch == ALL else sizes[micro_batch]


def _advice(peak: float, capacity: float, holding: dict[Action, StagePrice]) -> str:
    """What recomputing every stage of the rank would need: inputs kept, and one micro-batch's activations at a time."""
    spared = [p.held_bytes - p.kept_bytes for a, p in holding.items() if a.kind is Kind.FORWARD]
    needed = peak - sum(spared) + max(spared, default=0.0)
    if spared and needed <= capacity:
        return f"recompute would fit ({show_bytes(needed)})"
    tried = f"even with recompute it needs {show_bytes(needed)}" if spared else "it recomputes already"
    return f"{tried}: use smaller micro-batches or give it fewer layers"

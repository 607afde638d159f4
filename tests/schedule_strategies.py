"""Hypothesis strategies shared by the tests of schedules, simulation and coordination."""

from collections.abc import Callable
from random import Random

from hypothesis import strategies as st

from plait.coordinate.list_schedule import list_schedule
from plait.coordinate.order import branch_aware
from plait.coordinate.tasks import task_graph
from plait.errors import ScheduleError
from plait.schedule.action import ALL, Action, Kind, Schedule
from plait.schedule.placement import Edge, PlacedStage, Placement, Reduction, Replica
from plait.schedule.published import forward_only, gpipe, one_f_one_b, sequential
from plait.simulate.prices import LinkPrice, Prices, StagePrice

Case = tuple[Placement, Prices]


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Random DAGs of one to six stages on one to four ranks, with replicas, batch stages, frozen stages, reductions."""
    ranks = draw(st.integers(1, 4))
    count = draw(st.integers(1, 4))
    stages = tuple(draw(_stages(index, ranks, count)) for index in range(draw(st.integers(1, 6))))
    edges = tuple(draw(_edges(a, b)) for b in range(len(stages)) for a in range(b) if draw(st.booleans()))
    sizes = tuple(draw(st.integers(1, 3)) for _ in range(count))
    bare = Placement(ranks, stages, edges, sizes)
    return Placement(ranks, stages, edges, sizes, draw(_reductions(bare)))


@st.composite
def _stages(draw: st.DrawFn, index: int, ranks: int, count: int) -> PlacedStage:
    batch = draw(st.integers(0, 4)) == 0
    if batch:
        replicas = [Replica(draw(st.integers(0, ranks - 1)), (ALL,))]
    else:
        holders = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=2, unique=True))
        owner = [draw(st.sampled_from(holders)) for _ in range(count)]
        replicas = [Replica(h, tuple(m for m in range(count) if owner[m] == h)) for h in holders if h in owner]
    backward = draw(st.integers(0, 4)) > 0
    return PlacedStage(f"s{index}", "b", tuple(replicas), batch, backward, draw(st.booleans()))


def _edges(source: int, target: int) -> st.SearchStrategy[Edge]:
    nbytes = st.integers(0, 3).map(float)
    return st.builds(
        Edge, st.just(source), st.just(target), st.just(("x",)), nbytes, nbytes, st.booleans(), nbytes, nbytes
    )


@st.composite
def _reductions(draw: st.DrawFn, placement: Placement) -> tuple[Reduction, ...]:
    """One for every stage with several replicas, sometimes; and one over all ranks, sometimes."""
    found = []
    for index, stage in enumerate(placement.stages):
        ranks = tuple(r.rank for r in stage.replicas)
        if len(ranks) > 1 and draw(st.booleans()):
            found.append(Reduction((stage.name,), ranks, ((index,),) * len(ranks), 1.0))
    if placement.ranks > 1 and draw(st.booleans()):
        everywhere = tuple(range(placement.ranks))
        on = tuple(tuple(sorted({s for s, _ in placement.work(r)})) for r in everywhere)
        found.append(Reduction(("tied", "too"), everywhere, on, 1.0))
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Placements with small whole prices, so that many times are equal and sums are exact."""
    placement = draw(placements())
    whole = st.integers(0, 4).map(float)
    price = st.builds(StagePrice, whole, whole, whole, whole, whole)
    works = {(s, r, placement.samples(m)) for r in range(placement.ranks) for s, m in placement.work(r)}
    pairs = [(a, b) for a in range(placement.ranks) for b in range(placement.ranks) if a != b]
    link = st.builds(LinkPrice, whole, st.sampled_from([1.0, 2.0, float("inf")]))
    return placement, Prices(
        stages={work: draw(price) for work in sorted(works)},
        links={pair: draw(link) for pair in pairs},
        reductions=tuple(draw(whole) for _ in placement.reductions),
        step=tuple(draw(whole) for _ in range(placement.ranks)),
        fixed_bytes=tuple(draw(whole) for _ in range(placement.ranks)),
        capacity=(float("inf"),) * placement.ranks,
    )


def _by_chance(placement: Placement, prices: Prices, seed: int, *, split: bool) -> Schedule:
    """The schedule of a list scheduler whose priorities are random."""
    tasks = task_graph(placement, prices, split_backward=split)
    urgency = list(range(len(tasks)))
    Random(seed).shuffle(urgency)  # noqa: S311
    rows, _ = list_schedule(tasks, urgency, None, placement.ranks)
    return Schedule("by chance", tuple((*row, Action(Kind.STEP)) for row in rows))


Maker = Callable[[Placement, Prices], Schedule]


def makers() -> st.SearchStrategy[Maker]:
    """Ways to make a schedule for any placement; 1F1B is replaced by GPipe where it refuses."""
    published = [lambda p, _, make=make: make(p) for make in (gpipe, sequential, forward_only, _one_f_one_b_or_gpipe)]
    searched = [lambda p, c, split=split: branch_aware(p, c, split_backward=split) for split in (False, True)]
    chance = st.builds(
        lambda seed, split: lambda p, c: _by_chance(p, c, seed, split=split), st.integers(0, 999), st.booleans()
    )
    return st.sampled_from(published + searched) | chance


def _one_f_one_b_or_gpipe(placement: Placement) -> Schedule:
    try:
        return one_f_one_b(placement)
    except ScheduleError:
        return gpipe(placement)


def trainable(placement: Placement) -> bool:
    """Whether any stage has a backward: else a training schedule of it holds nothing but forwards and STEP."""
    return any(stage.backward for stage in placement.stages)

"""1F1B: as few micro-batches in flight as keep the pipeline full."""

from collections import defaultdict
from itertools import accumulate

from plait.errors import ScheduleError
from plait.schedule.action import Action, Schedule
from plait.schedule.placement import Placement
from plait.schedule.published._rows import Work, backwards, finish, forwards, work_of


def one_f_one_b(placement: Placement) -> Schedule:
    """DAPPLE's early backward (Fan et al. 2021, section 3.1), known as 1F1B (Narayanan et al. 2021, section 2.2).

    A rank that is d ranks before the last runs d forwards, then one forward and one backward in turn. On a DAG all
    stages of a rank act as one, so the ranks must not feed each other in circles: ScheduleError.
    """
    works = [work_of(placement, rank) for rank in range(placement.ranks)]
    feeds = _feeds(placement)
    depth: dict[int, int] = {}
    ahead: dict[int, list[int]] = {}
    for rank in reversed(_topological(placement, feeds)):
        depth[rank] = max((depth[r] + 1 for r in feeds[rank]), default=0)
        ahead[rank] = _ahead(works[rank], depth[rank], [(works[r], ahead[r]) for r in feeds[rank]])
    rows = (_row(placement, works[rank], ahead[rank]) for rank in range(placement.ranks))
    return finish("1f1b", placement, rows)


def _row(placement: Placement, work: Work, ahead: list[int]) -> list[Action]:
    row: list[Action] = []
    started = 0
    order = list(work)
    for position, m in enumerate(order):
        for early in order[started : ahead[position]]:
            row += forwards(work[early], early)
        started = ahead[position]
        row += backwards(placement, work[m], m)
    return row


def _ahead(work: Work, depth: int, fed: list[tuple[Work, list[int]]]) -> list[int]:
    """How many of the rank's micro-batches have gone forward before each one's backward.

    At least what the ranks that it feeds run before theirs, lest both wait for each other; that matters where
    stages have unequal numbers of replicas.
    """
    counts = [min(position + 1 + depth, len(work)) for position in range(len(work))]
    for there, ahead in fed:
        place = {m: p for p, m in enumerate(there)}
        own = {m: p for p, m in enumerate(work)}
        # needed[k]: how many of this rank's forwards the first k micro-batches of the fed rank need.
        needed = list(accumulate((own.get(m, -1) + 1 for m in there), max, initial=0))
        for position, m in enumerate(work):
            if m in place:
                counts[position] = max(counts[position], needed[ahead[place[m]]])
    return list(accumulate(counts, max))


def _feeds(placement: Placement) -> dict[int, set[int]]:
    """Rank → the other ranks that its stages send to; through barriers nothing is pipelined."""
    feeds: dict[int, set[int]] = defaultdict(set)
    for edge in placement.edges:
        source, target = placement.stages[edge.source], placement.stages[edge.target]
        if source.batch_scope or target.batch_scope:
            continue
        for m, rank in source.rank_of.items():
            if target.rank_of[m] != rank:
                feeds[rank].add(target.rank_of[m])
    return feeds


def _topological(placement: Placement, feeds: dict[int, set[int]]) -> list[int]:
    waits = {rank: sum(rank in fed for fed in feeds.values()) for rank in range(placement.ranks)}
    order = [rank for rank, count in waits.items() if not count]
    for rank in order:
        for fed in sorted(feeds[rank]):
            waits[fed] -= 1
            if not waits[fed]:
                order.append(fed)
    if len(order) < placement.ranks:
        circle = sorted(set(range(placement.ranks)) - set(order))
        raise ScheduleError(
            f"1f1b: ranks {', '.join(map(str, circle))} feed each other in circles (branches run in opposite "
            "directions?); place the stages in one direction, or use gpipe or branch-aware"
        )
    return order

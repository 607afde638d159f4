"""Published schedules: the orders and the counts of their papers."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from plait.errors import ScheduleError
from plait.schedule.action import Kind, Schedule
from plait.schedule.layouts import bidirectional, chain, linear, opposed, recomputing
from plait.schedule.lower import lower
from plait.schedule.placement import Edge, PlacedStage, Placement, Replica
from plait.schedule.published import chimera, forward_only, gpipe, one_f_one_b, sequential
from plait.schedule.verify import verify
from plait.simulate.prices import FREE, LinkPrice, StagePrice, uniform
from plait.simulate.simulate import simulate
from plait.simulate.timeline import Timeline

UNIT = StagePrice(forward=1.0, input_gradient=1.0, weight_gradient=1.0, held_bytes=1.0, kept_bytes=0.0)
EQUAL = StagePrice(forward=1.0, input_gradient=0.5, weight_gradient=0.5, held_bytes=1.0, kept_bytes=0.0)


def simulated(schedule: Schedule, placement: Placement, price: StagePrice = UNIT, link: LinkPrice = FREE) -> Timeline:
    programs = lower(schedule, placement)
    verify(programs)
    return simulate(programs, uniform(placement, price, link))


def published(name: str) -> list[dict[str, Any]]:
    """The rows of a file in shared/data/published, which lies beside the repository."""
    for parent in Path(__file__).resolve().parents:
        for base in (parent, parent / "shared"):
            path = base / "data" / "published" / name
            if base.name == "shared" and path.exists():
                rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
                return rows
    pytest.skip(f"shared/data/published/{name} is not here")


def test_gpipe_runs_all_forwards_then_all_backwards_in_reverse() -> None:
    assert gpipe(chain(2, 3)).to_text() == ["0F0 0F1 0F2 0B2 0B1 0B0 STEP", "1F0 1F1 1F2 1B2 1B1 1B0 STEP"]


def test_1f1b_runs_as_many_forwards_ahead_as_ranks_follow() -> None:
    assert one_f_one_b(chain(3, 3)).to_text() == [
        "0F0 0F1 0F2 0B0 0B1 0B2 STEP",
        "1F0 1F1 1B0 1F2 1B1 1B2 STEP",
        "2F0 2B0 2F1 2B1 2F2 2B2 STEP",
    ]


def test_chimera_interleaves_both_pipelines() -> None:
    assert chimera(bidirectional(4, 4)).to_text()[:2] == [
        "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1 STEP",
        "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1 STEP",
    ]


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (4, 8), (4, 3), (8, 24)])
@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_the_bubble_is_the_published_one(make: Any, ranks: int, count: int) -> None:
    placement = chain(ranks, count)
    assert simulated(make(placement), placement).bubble_ratio == pytest.approx((ranks - 1) / (count + ranks - 1))


def test_1f1b_holds_what_is_in_flight_and_gpipe_everything() -> None:
    placement = chain(4, 8)
    assert simulated(one_f_one_b(placement), placement).peak_bytes.tolist() == [4, 3, 2, 1]
    assert simulated(gpipe(placement), placement).peak_bytes.tolist() == [8, 8, 8, 8]


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (4, 4), (4, 8), (6, 18), (8, 8), (8, 32)])
def test_chimera_leaves_d_minus_2_slots_idle(ranks: int, count: int) -> None:
    """Section 3.2: D/2-1 in the forward and D/2-1 in the backward passes, however many units are concatenated."""
    placement = bidirectional(ranks, count)
    assert simulated(chimera(placement), placement, EQUAL).step_time == 2 * count + ranks - 2


@pytest.mark.parametrize("count", [2, 6, 10])
def test_chimera_takes_any_even_number_of_micro_batches(count: int) -> None:
    placement = bidirectional(4, count)
    simulated(chimera(placement), placement)


@pytest.mark.shared_data
def test_chimera_takes_the_slots_of_its_paper() -> None:
    for row in published("chimera_slots.json"):
        if row["pipelines"] == 2:
            placement = bidirectional(row["devices"], row["micro_batches"])
            timeline = simulated(chimera(placement), placement, EQUAL)
            assert (timeline.step_time, *set(timeline.busy)) == (row["slots"], row["busy"])


@pytest.mark.shared_data
def test_1f1b_has_the_bubble_rates_of_the_zero_bubble_paper() -> None:
    for row in published("zero_bubble_1f1b.json"):
        placement = chain(row["p"], row["m"])
        price = StagePrice(row["f"], row["b"], row["w"], 1.0, 0.0)
        cost = simulated(one_f_one_b(placement), placement, price, LinkPrice(row["comm"], inf)).step_time
        rate = (cost - row["m"] * (row["f"] + row["b"] + row["w"])) / cost
        assert round(rate, 4) == row["bubble_rate_1f1b"], row["model"]


def test_sequential_never_overlaps() -> None:
    placement = chain(3, 4)
    assert simulated(sequential(placement), placement).step_time == 3 * 3 * 4


def test_forward_only_keeps_nothing_and_is_pipelined() -> None:
    placement = opposed(4, 8)
    schedule = forward_only(placement)
    assert {a.kind for row in schedule.rows for a in row} == {Kind.FORWARD_ONLY}
    timeline = simulated(schedule, placement)
    assert not timeline.peak_bytes.any()
    # Nine stages' work on the busiest rank would be 24 if it never idled; one micro-batch at a time, 8 × 9.
    assert timeline.step_time <= 24 + 4


@pytest.mark.parametrize("make", [gpipe, one_f_one_b, sequential])
@pytest.mark.parametrize("batch_scope", [False, True])
def test_branches_in_one_line_are_pipelined_too(make: Any, batch_scope: bool) -> None:
    placement = recomputing(linear(opposed(3, 4, batch_scope=batch_scope), 3), [0, 4])
    kinds = [a.kind for row in make(placement).rows for a in row if a.stage in (0, 4)]
    assert Kind.FORWARD not in kinds
    assert kinds.count(Kind.FORWARD_ONLY) == kinds.count(Kind.RECOMPUTE) == kinds.count(Kind.BACKWARD)
    simulated(make(placement), placement)


def test_1f1b_refuses_ranks_that_feed_each_other() -> None:
    with pytest.raises(ScheduleError, match="ranks 0, 1, 2, 3 feed each other in circles"):
        one_f_one_b(opposed(4, 4))


def test_1f1b_with_unequal_replicas_waits_for_nobody_forever() -> None:
    """Three replicas in the middle: rank 1 runs micro-batch 3 before its first backward, so rank 0 must too."""
    everything = tuple(range(6))
    stages = (
        PlacedStage("a", "m", (Replica(0, everything),)),
        PlacedStage("b", "m", tuple(Replica(1 + r, everything[r::3]) for r in range(3))),
        PlacedStage("c", "m", (Replica(4, everything),)),
    )
    placement = Placement(5, stages, (Edge(0, 1, ("x",), 1.0), Edge(1, 2, ("x",), 1.0)), (1,) * 6)
    simulated(one_f_one_b(placement), placement)
    assert one_f_one_b(placement).to_text()[0].startswith("0F0 0F1 0F2 0F3 0B0")


@pytest.mark.parametrize("batch_scope", [False, True])
def test_chimera_runs_branches_that_share_the_ranks(batch_scope: bool) -> None:
    line = linear(opposed(2, 4, batch_scope=batch_scope), 2)
    stages = tuple(
        s if s.batch_scope else replace(s, replicas=(Replica(r := s.replicas[0].rank, (0, 1)), Replica(1 - r, (2, 3))))
        for s in line.stages
    )
    placement = replace(line, stages=stages)
    simulated(chimera(placement), placement)


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (bidirectional(3, 4), "chimera: 3 ranks; it needs an even number"),
        (bidirectional(4, 3), "chimera: 3 micro-batches; it needs an even number"),
        (chain(4, 4), "chimera: stage model.0 has 1 replicas; it needs two"),
        (chain(4, 4, replicas=2), "its second replica belongs on rank 3 of 4"),
    ],
)
def test_chimera_says_what_it_needs(placement: Placement, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        chimera(placement)


def test_chimera_refuses_pipelines_that_are_mixed_up() -> None:
    placement = bidirectional(2, 4)
    first, second = placement.stages
    turned = replace(second, replicas=second.replicas[::-1])
    with pytest.raises(ScheduleError, match=r"model\.0 and model\.1 run different micro-batches"):
        chimera(replace(placement, stages=(first, turned)))
    lopsided = tuple(
        replace(s, replicas=(Replica(s.replicas[0].rank, (0,)), Replica(s.replicas[1].rank, (1, 2, 3))))
        for s in placement.stages
    )
    with pytest.raises(ScheduleError, match="1 micro-batches go down and 3 up"):
        chimera(replace(placement, stages=lopsided))
    swapped = tuple(
        replace(s, replicas=(Replica(1 - s.replicas[0].rank, (0, 1)), Replica(s.replicas[0].rank, (2, 3))))
        for s in placement.stages
    )
    with pytest.raises(ScheduleError, match="against the down pipeline"):
        chimera(replace(placement, stages=swapped))

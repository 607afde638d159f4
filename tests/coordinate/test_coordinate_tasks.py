"""The task graph, its longest paths, and the room that a rank keeps for what is under way."""

from dataclasses import replace

import pytest

from plait.coordinate.room import Room, bound_stages
from plait.coordinate.tasks import longest_paths, task_graph
from plait.schedule.action import Kind
from plait.schedule.layouts import chain, opposed, recomputing
from plait.simulate.prices import LinkPrice, StagePrice, uniform

PRICE = StagePrice(forward=1.0, input_gradient=2.0, weight_gradient=4.0, held_bytes=3.0, kept_bytes=1.0)


def test_the_longest_path_counts_work_and_messages_to_the_end() -> None:
    placement = chain(2, 1)
    tasks = task_graph(placement, uniform(placement, PRICE, LinkPrice(0.5, 4.0)), split_backward=False)
    named = {str(t.action): path for t, path in zip(tasks, longest_paths(tasks), strict=True)}
    # A message: one byte at 4 bytes/s and 0.5 s of latency.
    assert named == {"0B0": 6.0, "1B0": 12.75, "1F0": 13.75, "0F0": 15.5}


def test_split_backwards_send_after_i_and_free_after_w() -> None:
    placement = chain(2, 1)
    tasks = task_graph(placement, uniform(placement, PRICE), split_backward=True)
    found = {str(t.action): t for t in tasks}
    assert [str(tasks[link.target].action) for link in found["1I0"].links] == ["1W0", "0B0"]  # the first stage has no I
    assert (found["1I0"].frees, found["1W0"].frees, found["1F0"].claims) == (0.0, 3.0, 3.0)


def test_what_has_one_half_of_a_backward_alone_is_not_split() -> None:
    """The first stage sends no gradient on, the second is frozen: only the third has work for both I and W."""
    placement = chain(3, 1)
    frozen = replace(placement.stages[1], weight_gradient=False)
    placement = replace(placement, stages=(placement.stages[0], frozen, placement.stages[2]))
    tasks = task_graph(placement, uniform(placement, PRICE), split_backward=True)
    assert [str(t.action) for t in tasks] == ["0F0", "1F0", "2F0", "2I0", "2W0", "1B0", "0B0"]


def test_recomputing_keeps_inputs_and_runs_again_right_before_the_backward() -> None:
    placement = recomputing(chain(2, 1), [0])
    tasks = task_graph(placement, uniform(placement, PRICE), split_backward=True)
    first = [t for t in tasks if t.action.stage == 0]
    assert [[a.kind for a in t.actions] for t in first] == [[Kind.FORWARD_ONLY], [Kind.RECOMPUTE, Kind.BACKWARD]]
    assert [(t.claims, t.frees, t.seconds) for t in first] == [(1.0, 0.0, 1.0), (2.0, 3.0, 7.0)]


@pytest.mark.parametrize("split", [False, True])
def test_tasks_come_after_all_that_they_wait_for(split: bool) -> None:
    placement = opposed(3, 2, batch_scope=True)
    tasks = task_graph(placement, uniform(placement, PRICE), split_backward=split)
    assert all(link.target > index for index, task in enumerate(tasks) for link in task.links)


def test_stages_before_a_barrier_are_bound_and_those_after_it_are_not() -> None:
    placement = opposed(2, 2, batch_scope=True)
    assert bound_stages(placement) == {0, 1, 2, 3, 4}
    assert bound_stages(opposed(2, 2)) == set()
    cut = replace(placement, edges=placement.edges[1:])
    assert bound_stages(cut) == {1, 2, 3, 4}


def test_a_younger_micro_batch_leaves_room_for_the_oldest() -> None:
    """Two stages of 3 bytes on one rank: with room for 9, micro-batch 1 may hold one of its own two."""
    placement = opposed(1, 2)
    prices = uniform(placement, PRICE, overrides=[(2, StagePrice(1.0, 1.0, 1.0, 0.0, 0.0))])
    tasks = task_graph(placement, prices, split_backward=False)
    room = Room(tasks, 9.0, set())
    named = {str(t.action): t for t in tasks}
    room.start(named["0F0"])
    room.start(named["0F1"])
    assert not room.fits(named["1F1"])
    assert room.fits(named["1F0"])
    room.start(named["1F0"])
    assert not room.fits(named["1F1"])
    room.end(named["1B0"])
    assert not room.fits(named["1F1"]), "what the oldest has freed stays its own until it has ended"
    room.end(named["0B0"])
    assert room.fits(named["1F1"])

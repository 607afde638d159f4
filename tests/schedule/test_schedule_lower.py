"""Lowering: which communication is put where."""

from dataclasses import replace

from plait.schedule.action import ALL, Schedule
from plait.schedule.layouts import bidirectional, chain, opposed
from plait.schedule.lower import lower
from plait.schedule.placement import Edge, PlacedStage, Placement, Reduction, Replica
from plait.schedule.program import Op, Programs
from plait.schedule.published import chimera, forward_only, gpipe


def text(programs: Programs) -> list[str]:
    """One line per rank; sends and receives as ``+`` and ``-`` with the message's name, reductions as ``sum``."""
    signs = {Op.SEND: "+", Op.RECV: "-"}
    return [
        " ".join(
            str(i.action)
            if i.action
            else f"sum{i.index}"
            if i.op is Op.REDUCE
            else signs[i.op] + programs.name(i.index)
            for i in program
        )
        for program in programs.ranks
    ]


def test_sends_follow_their_action_and_receives_precede_theirs() -> None:
    placement = chain(2, 2)
    schedule = Schedule.from_text("mine", ["0F0 0F1 0B0 0B1 STEP", "1F0 1B0 1F1 1B1 STEP"])
    assert text(lower(schedule, placement)) == [
        "0F0 +0>1:F0 0F1 +0>1:F1 -1>0:B0 0B0 -1>0:B1 0B1 STEP",
        "-0>1:F0 1F0 1B0 +1>0:B0 -0>1:F1 1F1 1B1 +1>0:B1 STEP",
    ]


def test_stages_on_one_rank_exchange_no_messages() -> None:
    placement = replace(
        chain(2, 2), stages=tuple(replace(s, replicas=(Replica(0, (0, 1)),)) for s in chain(2, 2).stages)
    )
    assert not lower(gpipe(placement), placement).messages


def test_recompute_and_weight_gradients_need_and_make_no_messages() -> None:
    schedule = Schedule.from_text("mine", ["0N0 0R0 0I0 0W0 STEP", "1N0 1R0 1I0 1W0 STEP"])
    assert text(lower(schedule, chain(2, 1))) == [
        "0N0 +0>1:F0 0R0 -1>0:B0 0I0 0W0 STEP",
        "-0>1:F0 1N0 1R0 1I0 +1>0:B0 1W0 STEP",
    ]


def test_a_batch_stage_receives_and_answers_every_micro_batch() -> None:
    placement = opposed(2, 2, batch_scope=True)
    programs = lower(gpipe(placement), placement)
    assert text(programs)[1] == (
        "2F0 +2>3:F0 -0>1:F0 1F0 2F1 +2>3:F1 -3>4:F0 -0>1:F1 1F1 -3>4:F1 4F* 4B* +4>3:B1 +4>3:B0 "
        "1B1 +1>0:B1 -3>2:B1 2B1 1B0 +1>0:B0 -3>2:B0 2B0 STEP"
    )


def test_between_two_batch_stages_one_message_goes_for_the_whole_batch() -> None:
    stages = tuple(PlacedStage(f"s{r}", "b", (Replica(r, (ALL,)),), batch_scope=True) for r in range(2))
    placement = Placement(2, stages, (Edge(0, 1, ("x",), 3.0, 1.0),), (2, 4))
    (forward, backward) = lower(gpipe(placement), placement).messages
    assert (forward.micro_batch, forward.nbytes) == (ALL, 3.0 * 6 + 1.0)
    assert (backward.sender, backward.receiver, backward.nbytes) == (1, 0, 0.0)


def test_a_batch_stage_sends_each_micro_batch_to_the_replica_that_runs_it() -> None:
    loss = PlacedStage("mine", "b", (Replica(0, (ALL,)),), batch_scope=True)
    after = PlacedStage("head", "b", (Replica(1, (0,)), Replica(2, (1,))))
    placement = Placement(3, (loss, after), (Edge(0, 1, ("x",), 1.0),), (2, 4))
    programs = lower(forward_only(placement), placement)
    assert text(programs) == ["0N* +0>1:F0 +0>1:F1", "-0>1:F0 1N0", "-0>1:F1 1N1"]
    assert [m.nbytes for m in programs.messages] == [2.0, 4.0]


def test_gradients_go_back_only_where_there_are_any() -> None:
    placement = chain(3, 1)
    frozen = replace(placement.stages[0], backward=False)
    ints = replace(placement.edges[1], gradient=False)
    without = replace(placement, stages=(frozen, *placement.stages[1:]), edges=(placement.edges[0], ints))
    programs = lower(gpipe(without), without)
    assert text(programs) == ["0F0 +0>1:F0 STEP", "-0>1:F0 1F0 +1>2:F0 1B0 STEP", "-1>2:F0 2F0 2B0 STEP"]


def test_what_was_sent_first_is_received_first_even_if_needed_later() -> None:
    """Transports deliver in the sender's order: the skip edge's message waits for its turn, not the other way round."""
    edges = (Edge(0, 1, ("x",), 1.0), Edge(0, 2, ("skip",), 1.0), Edge(1, 2, ("y",), 1.0))
    stages = tuple(PlacedStage(f"s{i}", "b", (Replica(rank, (0, 1)),)) for i, rank in enumerate((0, 1, 1)))
    placement = Placement(2, stages, edges, (1, 1))
    schedule = Schedule.from_text("mine", ["0F0 0F1", "1F0 1F1 2F0 2F1"])
    assert text(lower(schedule, placement))[1] == "-0>1:F0 1F0 -0>2:F0 -0>1:F1 1F1 2F0 -0>2:F1 2F1"


def test_reductions_begin_after_the_last_gradient_and_in_one_order_everywhere() -> None:
    placement = chain(4, 4, replicas=2)
    sums = (Reduction(("late",), (0, 1), ((0,), (0,)), 8.0), Reduction(("early",), (0, 1), ((), ()), 8.0))
    placement = replace(placement, reductions=sums)
    first, second, *_ = text(lower(gpipe(placement), placement))
    assert first.endswith("0B0 sum0 sum1 STEP")
    assert second.endswith("0B1 sum0 sum1 STEP")
    assert not any("sum" in line for line in text(lower(forward_only(placement), placement)))


def test_a_rank_whose_stages_are_all_frozen_still_joins_its_reductions() -> None:
    placement = chain(2, 1)
    frozen = replace(placement.stages[0], backward=False)
    tied = Reduction(("tied",), (0, 1), ((0,), (1,)), 8.0)
    placement = replace(placement, stages=(frozen, placement.stages[1]), reductions=(tied,))
    lines = text(lower(gpipe(placement), placement))
    assert lines == ["sum0 0F0 +0>1:F0 STEP", "-0>1:F0 1F0 1B0 sum0 STEP"]


def test_chimera_sends_over_both_ways() -> None:
    placement = bidirectional(2, 2)
    pairs = {(m.sender, m.receiver, m.micro_batch) for m in lower(chimera(placement), placement).messages}
    assert pairs == {(0, 1, 0), (1, 0, 0), (1, 0, 1), (0, 1, 1)}

"""The verifier: each fault is refused and named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from plait.errors import PlanError
from plait.schedule.action import Action, Kind, Schedule
from plait.schedule.layouts import chain, opposed
from plait.schedule.lower import lower
from plait.schedule.placement import Reduction
from plait.schedule.program import Instruction, Op, Programs
from plait.schedule.published import forward_only, gpipe
from plait.schedule.verify import verify

GOOD = ["0F0 0F1 0B0 0B1 STEP", "1F0 1B0 1F1 1B1 STEP"]


def refused(lines: list[str]) -> str:
    """What the verifier says of two ranks' rows on a chain of two stages and two micro-batches."""
    with pytest.raises(PlanError) as caught:
        verify(lower(Schedule.from_text("mine", lines), chain(2, 2)))
    return str(caught.value)


def test_a_good_schedule_passes() -> None:
    verify(lower(Schedule.from_text("mine", GOOD), chain(2, 2)))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["0F0 0F1 0B1 STEP", GOOD[1]], "stage model.0, micro-batch 0 on rank 0: expected one backward"),
        ([GOOD[0], "1B0 1F1 1B1 STEP"], "stage model.1, micro-batch 0 on rank 1: expected one forward"),
        ([GOOD[0], "1N0 1B0 1F1 1B1 STEP"], "F, or N and later R; its row has 1N0 1B0"),
        ([GOOD[0], "1F0 1R0 1B0 1F1 1B1 STEP"], "F, or N and later R; its row has 1F0 1R0 1B0"),
        ([GOOD[0], "1F0 1I0 1F1 1B1 STEP"], "expected one backward, B, or I and later W; its row has 1F0 1I0"),
        ([GOOD[0], "1F0 1F0 1B0 1F1 1B1 STEP"], "rank 1 runs 1F0 twice (stage model.1, micro-batch 0)"),
        ([GOOD[0] + " 1F0", GOOD[1]], "rank 0 runs 1F0, but stage model.1, micro-batch 0 is placed on rank 1"),
        ([GOOD[0], GOOD[1] + " 1F2"], "rank 1 runs 1F2, but stage model.1 runs micro-batches 0 to 1"),
        ([GOOD[0], GOOD[1] + " 2F0"], "rank 1 runs 2F0, but there are only stages 0 to 1"),
        (["0F0 0F1 0B0 0B1", GOOD[1]], "rank 0: STEP stands 0 times"),
        (["0F0 0F1 STEP 0B0 0B1", GOOD[1]], "rank 0: STEP stands 1 times in its row; it must stand once, at the end"),
        (["0F0 0F1", "1F0 1F1 STEP"], "rank 1: STEP in a schedule without backwards"),
        ([GOOD[0], "1B0 1F0 1F1 1B1 STEP"], "rank 1 runs 1B0 before 1F0 (stage model.1, micro-batch 0)"),
        ([GOOD[0], "1F0 1W0 1I0 1F1 1B1 STEP"], "rank 1 runs 1W0 before 1I0"),
        ([GOOD[0], "1R0 1N0 1B0 1F1 1B1 STEP"], "rank 1 runs 1R0 before 1N0"),
        ([GOOD[0]], "the schedule has 1 rows, the plan 2 ranks"),
    ],
)
def test_incomplete_and_disordered_rows_are_named(lines: list[str], said: str) -> None:
    assert said in refused(lines)


def test_inputs_come_before_outputs_on_the_same_rank() -> None:
    placement = opposed(1, 1)
    rows = ["0F0 2F0 1F0 2B0 1B0 0B0 STEP"]
    with pytest.raises(
        PlanError, match=r"rank 0 runs 2F0 before 1F0, whose output it needs \(stage loss, micro-batch 0"
    ):
        verify(lower(Schedule.from_text("mine", rows), placement))
    rows = ["0F0 1F0 2F0 1B0 2B0 0B0 STEP"]
    with pytest.raises(PlanError, match="rank 0 runs 1B0 before 2B0, whose output it needs"):
        verify(lower(Schedule.from_text("mine", rows), placement))


def test_a_deadlock_is_named_as_a_circle_of_waits() -> None:
    said = refused(["0F0 0B0 0F1 0B1 STEP", "1F0 1F1 1B0 1B1 STEP"])
    assert said == (
        "the programs deadlock: rank 0 waits at 0B0 for rank 1's message 1>0:B0; "
        "rank 1 waits at 1F1 for rank 0's message 0>1:F1"
    )


def test_ranks_outside_the_circle_are_not_named() -> None:
    rows = ["0F0 0F1 0B0 0B1 STEP", "1F0 1B0 1F1 1B1 STEP", "2F0 2F1 2B0 2B1 STEP"]
    with pytest.raises(PlanError, match="deadlock") as caught:
        verify(lower(Schedule.from_text("mine", rows), chain(3, 2)))
    assert "rank 0" not in str(caught.value)


def _programs() -> Programs:
    placement = replace(chain(2, 2), reductions=(_tied("a"), _tied("b")))
    return lower(Schedule.from_text("mine", GOOD), placement)


def _tied(name: str) -> Reduction:
    return Reduction((name,), (0, 1), ((0,), (1,)), 1.0)


def _changed(programs: Programs, rank: int, change: Callable[[list[Instruction]], object]) -> Programs:
    ranks = [list(p) for p in programs.ranks]
    change(ranks[rank])
    return replace(programs, ranks=tuple(map(tuple, ranks)))


def _at(program: list[Instruction], op: Op, nth: int = 0) -> int:
    return [i for i, instruction in enumerate(program) if instruction.op is op][nth]


def _swap(program: list[Instruction], a: int, b: int) -> None:
    program[a], program[b] = program[b], program[a]


@pytest.mark.parametrize(
    ("rank", "change", "said"),
    [
        (0, lambda p: p.pop(_at(p, Op.SEND)), "rank 0 never sends 0>1:F0 (rank 0 to rank 1)"),
        (1, lambda p: p.pop(_at(p, Op.RECV)), "rank 1 never receives 0>1:F0 (rank 0 to rank 1)"),
        (0, lambda p: p.insert(3, p[_at(p, Op.SEND)]), "rank 0 sends 0>1:F0 twice"),
        (
            1,
            lambda p: p.append(Instruction(Op.SEND, index=0)) or p.insert(0, p.pop()),
            "rank 1 sends 0>1:F0, which goes",
        ),
        (0, lambda p: p.insert(0, p.pop(_at(p, Op.SEND))), "rank 0 sends 0>1:F0 before the action that makes it"),
        (1, lambda p: p.insert(1, p.pop(_at(p, Op.RECV))), "rank 1 receives 0>1:F0 after the action that needs it"),
        (0, lambda p: _swap(p, _at(p, Op.RECV), _at(p, Op.RECV, 1)), "rank 0 receives 1>0:B0 after the action"),
        (0, lambda p: p.pop(_at(p, Op.REDUCE)), "rank 0 never begins reduction 0 (a)"),
        (0, lambda p: p.insert(0, p.pop(_at(p, Op.REDUCE))), "rank 0 begins reduction 0 (a) before 0B1"),
        (0, lambda p: p.insert(-1, p[_at(p, Op.REDUCE)]), "begins a reduction twice"),
        (
            0,
            lambda p: _swap(p, _at(p, Op.REDUCE), _at(p, Op.REDUCE, 1)),
            "rank 0 waits at STEP for rank 1 in reduction 1; rank 1 waits at STEP for rank 0 in reduction 0",
        ),
    ],
)
def test_damaged_programs_are_named(rank: int, change: Callable[[list[Instruction]], object], said: str) -> None:
    verify(_programs())
    with pytest.raises(PlanError) as caught:
        verify(_changed(_programs(), rank, change))
    assert said in str(caught.value)


def test_receives_out_of_the_senders_order_are_named() -> None:
    programs = _changed(_programs(), 0, lambda p: p.insert(_at(p, Op.RECV), p.pop(_at(p, Op.RECV, 1))))
    with pytest.raises(PlanError, match="rank 0 receives 1>0:B1 out of order: rank 1 sends 1>0:B0 before it"):
        verify(programs)


def test_messages_that_the_placement_does_not_have_are_named() -> None:
    programs = _programs()
    with pytest.raises(
        PlanError, match=r"backward message of micro-batch 1 between model\.0 and model\.1.*there 0 times"
    ):
        verify(replace(programs, messages=programs.messages[:-1]))
    with pytest.raises(PlanError, match="there 2 times, expected 1"):
        verify(replace(programs, messages=(*programs.messages, programs.messages[0])))


def test_evaluation_needs_no_backward_and_no_step() -> None:
    placement = opposed(2, 2, batch_scope=True)
    verify(lower(forward_only(placement), placement))
    row = (*forward_only(placement).rows[0], Action(Kind.RECOMPUTE, 0, 0))
    with pytest.raises(PlanError, match="nothing to go backward for"):
        verify(lower(Schedule("mine", (row, *forward_only(placement).rows[1:])), placement))


def test_a_schedule_that_no_other_depends_on_is_linear_in_size() -> None:
    """Forty thousand instructions: anything quadratic would run into pytest's timeout."""
    placement = chain(4, 2000)
    verify(lower(gpipe(placement), placement))

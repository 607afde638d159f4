"""The barrier and recompute passes."""

from dataclasses import replace

from plait.schedule.action import ALL
from plait.schedule.barrier import forward_phases
from plait.schedule.layouts import opposed, recomputing
from plait.schedule.placement import Edge, PlacedStage, Placement, Replica
from plait.schedule.published import gpipe, one_f_one_b, sequential


def _line(*batch: bool) -> Placement:
    """Stages on one rank, one after another; some of batch scope."""
    stages = tuple(
        PlacedStage(f"s{i}", "b", (Replica(0, (ALL,) if scope else (0, 1)),), scope) for i, scope in enumerate(batch)
    )
    edges = tuple(Edge(i, i + 1, ("x",), 1.0) for i in range(len(stages) - 1))
    return Placement(1, stages, edges, (1, 1))


def test_all_forwards_come_before_a_batch_loss_and_all_backwards_after() -> None:
    assert sequential(_line(False, True)).to_text() == ["0F0 0F1 1F* 1B* 0B0 0B1 STEP"]


def test_without_batch_stages_nothing_moves() -> None:
    assert sequential(_line(False, False)).to_text() == ["0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1 STEP"]


def test_recomputing_stages_keep_their_inputs_over_the_barrier() -> None:
    placement = recomputing(_line(False, False, True), [1])
    assert sequential(placement).to_text() == ["0F0 1N0 0F1 1N1 2F* 2B* 1R0 1B0 0B0 1R1 1B1 0B1 STEP"]


def test_a_batch_stage_in_mid_model_leaves_the_stages_after_it_interleaved() -> None:
    assert sequential(_line(False, True, False)).to_text() == ["0F0 0F1 1F* 2F0 2B0 2F1 2B1 1B* 0B0 0B1 STEP"]


def test_two_barriers_are_kept_apart() -> None:
    assert forward_phases(_line(False, True, False, True, False)) == [0, 1, 2, 3, 4]
    assert gpipe(_line(False, True, False, True)).to_text() == ["0F0 0F1 1F* 2F0 2F1 3F* 3B* 2B1 2B0 1B* 0B1 0B0 STEP"]


def test_a_stage_that_the_loss_does_not_need_does_not_wait_for_it() -> None:
    trunk, loss = _line(False, True).stages
    head = replace(trunk, name="head")
    edges = (Edge(0, 1, ("x",), 1.0), Edge(0, 2, ("x",), 1.0))
    placement = Placement(1, (trunk, loss, head), edges, (1, 1))
    assert sequential(placement).to_text() == ["0F0 2F0 2B0 0F1 2F1 2B1 1F* 1B* 0B0 0B1 STEP"]


def test_a_frozen_batch_stage_has_no_backward() -> None:
    stage = replace(_line(False, True).stages[1], backward=False)
    placement = replace(_line(False, True), stages=(_line(False, True).stages[0], stage))
    assert sequential(placement).to_text() == ["0F0 0F1 1F* 0B0 0B1 STEP"]


def test_a_batch_stage_alone_goes_backward() -> None:
    frozen = replace(_line(False, True).stages[0], backward=False)
    placement = replace(_line(False, True), stages=(frozen, _line(False, True).stages[1]))
    assert gpipe(placement).to_text() == ["0F0 0F1 1F* 1B* STEP"]


def test_generators_orders_stay_inside_the_phases() -> None:
    placement = opposed(2, 3, batch_scope=True)
    assert gpipe(placement).to_text()[0] == "0F0 3F0 0F1 3F1 0F2 3F2 3B2 0B2 3B1 0B1 3B0 0B0 STEP"
    single = replace(placement, ranks=1, stages=tuple(
        replace(s, replicas=(Replica(0, s.replicas[0].micro_batches),)) for s in placement.stages
    ))  # fmt: skip
    row = one_f_one_b(single).to_text()[0].split()
    assert row.index("4F*") + 1 == row.index("4B*") == 13

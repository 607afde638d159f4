"""Schedules as torch.distributed.pipelining reads them."""

import pytest

from plait.errors import ScheduleError
from plait.schedule.export import from_csv, to_csv
from plait.schedule.layouts import chain, opposed, recomputing
from plait.schedule.published import gpipe, one_f_one_b


def test_it_comes_back_as_it_went() -> None:
    schedule = one_f_one_b(chain(3, 4))
    assert from_csv("1f1b", to_csv(schedule)).rows == schedule.rows


def test_torch_reads_every_cell() -> None:
    from torch.distributed.pipelining.schedules import _Action

    for line in to_csv(one_f_one_b(chain(3, 4))).splitlines():
        assert [str(_Action.from_str(cell)) for cell in line.split(",")] == line.split(",")


def test_idle_slots_are_empty_cells() -> None:
    assert from_csv("mine", "0F0,,0B0\n,1F0,1B0\n").to_text() == ["0F0 0B0 STEP", "1F0 1B0 STEP"]


@pytest.mark.parametrize(
    ("placement", "said"),
    [(opposed(2, 2, batch_scope=True), r"4F\* has no word"), (recomputing(chain(2, 2), [0]), "0N0 has no word")],
)
def test_what_it_has_no_word_for_is_refused(placement: object, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        to_csv(gpipe(placement))  # type: ignore[arg-type]


def test_what_is_no_action_is_refused() -> None:
    with pytest.raises(ScheduleError, match="'0X1' is not an action"):
        from_csv("mine", "0F0,0X1\n")

"""The trace has what Perfetto needs; tables say what timelines hold; the page is one file."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plait.errors import FileError
from plait.report import tables
from plait.report.html import write_report
from plait.report.perfetto import write_trace
from plait.simulate.timeline import Event, Lane, Timeline
from support.report_case import Case


@pytest.fixture
def trace(case: Case, tmp_path: Path) -> list[dict[str, Any]]:
    write_trace(tmp_path / "trace.json", {"predicted": case.predicted, "measured": case.measured})
    events: list[dict[str, Any]] = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    return events


def test_each_kind_of_trace_event_has_its_required_fields(trace: list[dict[str, Any]]) -> None:
    required = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur"},
        "M": {"name", "pid", "args"},
        "C": {"name", "pid", "ts", "args"},
        "s": {"name", "cat", "id", "pid", "tid", "ts"},
        "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    }
    assert {e["ph"] for e in trace} == set(required)
    for event in trace:
        assert required[event["ph"]] <= set(event)
        assert event.get("dur", 0) >= 0


def test_both_timelines_are_there_with_all_their_events(trace: list[dict[str, Any]], case: Case) -> None:
    slices = [e for e in trace if e["ph"] == "X"]
    assert len(slices) == len(case.predicted) + len(case.measured)
    assert len({e["pid"] for e in slices}) == 2 * len(case.plan.devices)


def test_slices_of_a_thread_never_overlap_and_no_time_is_negative(tmp_path: Path) -> None:
    rows = [
        Event(0, Lane.COMPUTE, "0F0", -0.5, 1.0, 0, 0),
        Event(0, Lane.SEND, "0>1:F0", 1.0, 4.0, 0, 0),
        Event(0, Lane.SEND, "0>1:F1", 2.0, 5.0, 0, 1),
        Event(0, Lane.SEND, "0>1:F2", 4.5, 6.0, 0, 2),
    ]
    timeline = Timeline.build(rows, [], ranks=("a",), stages=("x", "y"), step_time=6.0, origin="measured")
    write_trace(tmp_path / "t.json", {"measured": timeline})
    slices = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert min(e["ts"] for e in slices) == 0.0
    by_thread: dict[int, list[dict[str, Any]]] = {}
    for event in sorted(slices, key=lambda e: e["ts"]):
        before = by_thread.setdefault(event["tid"], [])
        assert not before or before[-1]["ts"] + before[-1]["dur"] <= event["ts"]
        before.append(event)
    assert len(by_thread) == 3


def test_arrows_begin_before_they_end_and_come_in_pairs(trace: list[dict[str, Any]]) -> None:
    begins = {e["id"]: e for e in trace if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace if e["ph"] == "f"}
    assert begins
    assert set(begins) == set(ends)
    for key, event in begins.items():
        assert event["ts"] <= ends[key]["ts"]
        assert event["pid"] != ends[key]["pid"]


def printed(table: Any) -> str:
    console = Console(width=220, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.capture() as capture:
        console.print(table)
    console.file.close()
    return capture.get()


def test_tables_name_devices_stages_and_figures(case: Case) -> None:
    text = printed(tables.against(case.predicted, case.measured))
    assert "-5.7%" in text
    assert "paris/p0/1" in printed(tables.per_rank(case.measured))
    assert "vision.3" in printed(tables.plan_summary(case.plan))
    assert "1.060" in printed(tables.compare({"a": case.predicted, "b": case.measured}))


def test_rows_for_the_terminal_show_forwards_before_backwards(case: Case) -> None:
    rows = tables.render_rows(case.predicted, 60)
    assert len(rows) == len(case.plan.devices)
    assert all(len(row) == 60 for row in rows)
    for row in rows:
        assert row.index("░") < row.index("▓")


def test_the_page_is_one_file_without_links(case: Case, tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", plan=case.plan, predicted=case.predicted)
    text = (tmp_path / "r.html").read_text()
    assert "<script src" not in text
    assert "<link" not in text
    assert [p.name for p in tmp_path.iterdir()] == ["r.html"]


def test_text_from_files_is_escaped(case: Case, tmp_path: Path) -> None:
    plan = case.plan.model_copy(update={"model": case.plan.model.model_copy(update={"name": "<script>x</script>"})})
    write_report(tmp_path / "r.html", plan=plan, predicted=case.predicted, summary={"<b>": "<i>"})
    text = (tmp_path / "r.html").read_text()
    assert "<script>x" not in text
    assert "<i>" not in text


def test_a_place_that_cannot_be_written_is_told(case: Case, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        write_report(tmp_path / "file" / "r.html", plan=case.plan, predicted=case.predicted)

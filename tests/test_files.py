"""Files: values come back as they were written, and errors name the file and the field."""

import os
import stat
from pathlib import Path

import pytest

from plait.cluster.spec import Cluster
from plait.errors import FileError
from plait.files import FileValue, read_text, write_text
from plait.job.job import Job
from plait.plan.plan import Plan
from plait.simulate.timeline import Timeline
from support.report_case import CLUSTER, graph, make_case

JOB = """
format: plait-job/1
model: {class: "transformers:CLIPModel", config: {projection_dim: 8}}
data: {factory: "digits:Digits"}
global_batch: 8
steps: 3
cluster: cluster.yaml
"""
VALUES: dict[str, FileValue] = {
    "cluster": Cluster.parse(CLUSTER),
    "graph": graph(),
    "plan": make_case().plan,
    "job": Job.parse(JOB),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    value = VALUES[name]
    path = tmp_path / "some folder" / f"{name}.yaml"
    value.save(path)
    assert type(value).parse(path.read_text()) == value
    assert type(value).load(path).dump() == value.dump()


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 1e-3), ("1.0e30", 1e30), ("-2E+5", -2e5), (".5e1", 5.0), ("3", 3), ("e5", "e5"), ("1e5x", "1e5x")],
)
def test_numbers_with_an_exponent_are_numbers(written: str, value: object) -> None:
    options = Job.parse(JOB + f"optimizer: {{options: {{lr: {written}}}}}\n").optimizer.options
    assert options["lr"] == value
    assert type(options["lr"]) is type(value)


def test_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    job = Job.parse(JOB).model_copy(update={"name": "123456789e12"})
    job.save(tmp_path / "job.yaml")
    assert Job.load(tmp_path / "job.yaml").name == "123456789e12"


def test_a_timeline_comes_back_as_it_was(tmp_path: Path) -> None:
    timeline = make_case().predicted
    timeline.save(tmp_path / "t.json")
    again = Timeline.load(tmp_path / "t.json")
    assert list(again.events()) == list(timeline.events())
    assert again.to_json() == timeline.to_json()


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (Cluster, "", "expected fields"),
        (Cluster, "- 1", "expected fields"),
        (Cluster, "a: [", "not readable as YAML"),
        (Cluster, "format: plait-plan/1", "format: expected 'plait-cluster/1', found 'plait-plan/1'"),
        (Cluster, CLUSTER.replace("name: two sites", "namee: two sites"), "namee: unknown field; is it misspelt?"),
        (Cluster, CLUSTER.replace("memory: 1 GiB", "memory: 1 gib"), "device_types.fast.memory: '1 gib' is not a size"),
        (Cluster, CLUSTER.replace("200 Mbit/s", "-200 Mbit/s"), "bandwidth: .* not negative"),
        (Cluster, CLUSTER.replace("type: fast", "type: fats"), "unknown device type 'fats'"),
        (Job, JOB.replace("steps: 3", "steps: 0"), "steps: Input should be greater than 0"),
        (Job, JOB.replace("steps: 3\n", ""), "steps: missing; it is required"),
        (Job, JOB.replace("digits:Digits", "digits"), "data.factory: "),
    ],
)
def test_an_error_names_the_file_the_field_and_what_would_be_right(
    kind: type[FileValue], text: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(FileError, match=words) as raised:
        kind.load(path)
    assert str(path) in str(raised.value)


def test_only_the_innermost_error_is_told() -> None:
    with pytest.raises(FileError) as raised:
        Cluster.parse(CLUSTER.replace("count: 2", "count: 0"))
    assert "at least 1 item" not in str(raised.value)


@pytest.mark.parametrize("path", ["absent.yaml", "."])
def test_an_unreadable_file_is_told(path: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot read"):
        read_text(tmp_path / path)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match="cannot read"):
        Plan.load(tmp_path / "x")


def test_a_failed_write_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "first")
    with pytest.raises(FileError, match="cannot write"):
        write_text(tmp_path / "a" / "b", "second")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "first"


def test_written_files_have_usual_permissions(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "text")
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask

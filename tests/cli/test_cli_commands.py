"""Commands on the digits job: each is useful alone, explains itself, and says what is wrong without a traceback."""

import json
from pathlib import Path

import pytest

from plait.cli.app import COMMANDS, run
from plait.cli.demo import examples
from plait.model.graph import BranchGraph
from plait.plan.plan import Plan
from plait.simulate.timeline import Timeline

JOB = str(examples() / "digits" / "job.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the job's graph, profile and plan, made by the commands themselves."""
    made = tmp_path_factory.mktemp("by hand")
    assert run(["capture", JOB, "-o", str(made / "graph.yaml")]) == 0
    assert run(["profile", JOB, "-o", str(made / "profile.yaml"), "--sizes", "32,64,128"]) == 0
    profile = str(made / "profile.yaml")
    assert run(["plan", JOB, "-o", str(made / "plan.yaml"), "--profile", profile, "--all-devices"]) == 0
    return made


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Example: plait" in " ".join(capsys.readouterr().out.split())


def test_capture_finds_both_towers_and_a_loss_over_the_whole_batch(folder: Path) -> None:
    graph = BranchGraph.load(folder / "graph.yaml")
    assert list(graph.branches) == ["vision_model", "text_model", "loss"]
    assert [loss.scope for loss in graph.losses] == ["batch"]


def test_plan_uses_every_device_and_predicts(folder: Path) -> None:
    plan = Plan.load(folder / "plan.yaml")
    assert len(plan.devices) == 4
    assert plan.global_batch == 128
    assert plan.predicted is not None
    assert plan.predicted.step_time > 0


def test_verify_and_simulate_agree_with_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(folder / "plan.yaml")]) == 0
    assert "sound" in capsys.readouterr().out
    out = folder / "timeline.json"
    assert run(["simulate", str(folder / "plan.yaml"), "-o", str(out), "--html", str(folder / "s.html")]) == 0
    plan = Plan.load(folder / "plan.yaml")
    assert plan.predicted is not None
    assert Timeline.load(out).step_time == pytest.approx(plan.predicted.step_time)
    assert (folder / "s.html").exists()


@pytest.mark.parametrize("form", ["job", "cluster", "plan"])
def test_schema_is_a_json_schema_of_the_file(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", form]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "format" in schema["required"]
    assert schema["properties"]["format"]["const"] == f"plait-{form}/1"


def test_too_small_devices_are_told_with_what_is_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = (examples() / "two_sites.yaml").read_text().replace("512 MiB", "1 MiB").replace("256 MiB", "1 MiB")
    (folder / "small.yaml").write_text(small)
    job = Path(JOB).read_text().replace("../two_sites.yaml", str(folder / "small.yaml"))
    (folder / "job.yaml").write_text(job + f"modules: {Path(JOB).parent}\n")
    assert run(["plan", str(folder / "job.yaml"), "--profile", str(folder / "profile.yaml")]) == 1
    said = capsys.readouterr().err
    assert "1 MiB" in said
    assert "needs" in said


def test_a_hand_made_order_that_deadlocks_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from plait.plan.schedules import schedule_of

    plan = Plan.load(folder / "plan.yaml")
    rows = [row.split() for row in schedule_of(plan).to_text()]
    rows = [[*reversed(row[:-1]), row[-1]] for row in rows]
    hand = plan.model_dump(mode="json") | {"schedule": {"name": "by hand", "order": [" ".join(row) for row in rows]}}
    Plan.from_data(hand, "here").save(folder / "hand.yaml")
    assert run(["verify", str(folder / "hand.yaml")]) == 1
    assert "Traceback" not in capsys.readouterr().err

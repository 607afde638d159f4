"""What a user can do wrong: each is told with file, field and what would be right, at once and without a traceback."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plait.cli.app import run
from plait.cli.demo import examples
from support.report_case import make_case

DIGITS = examples() / "digits"
JOB = (DIGITS / "job.yaml").read_text() + f"modules: {DIGITS}\n"
CLUSTER = (examples() / "two_sites.yaml").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "job.yaml").write_text(JOB.replace("../two_sites.yaml", "cluster.yaml"))
    make_case().plan.save(tmp_path / "plan.yaml")
    return tmp_path


Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command that must fail says."""

    def call(*arguments: str, code: int = 1) -> str:
        assert run(list(arguments)) == code
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert "not an error plait knows" not in error
        return error

    return call


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("steps: 300", "stepz: 300", "stepz: unknown field"),
        ("steps: 300\n", "", "steps: missing; it is required"),
        ("global_batch: 128", "global_batch: -1", "global_batch: Input should be greater than 0"),
        ("transformers:CLIPModel", "transformers:KLIPModel", "model.class: transformers"),
        ("hidden_size: 64", "hidden_size: 63", "model.config: CLIPConfig raised"),
        ("digits:Digits", "digitz:Digits", "data.factory: no module 'digitz'"),
        ("digits:Digits", "digits:Figures", "data.factory: "),
        ("shift: 1", "shipt: 1", "data.options: Digits has no option 'shipt'; it has batch, seed, shift"),
        ("name: AdamW", "name: AdamQ", "optimizer.name"),
        ("eps: 1.0e-6", "epsilon: 1.0e-6", "optimizer.options: AdamW has no option 'epsilon'"),
        ("cluster.yaml", "nowhere.yaml", "nowhere.yaml: cannot read: No such file"),
        ("[image_embeds, text_embeds]", "[image_embedz]", "outputs: the model's result has no tensor 'image_embedz'"),
    ],
)
def test_a_wrong_job_is_told_by_field(folder: Path, said: Said, old: str, new: str, words: str) -> None:
    text = (folder / "job.yaml").read_text()
    assert old in text
    (folder / "job.yaml").write_text(text.replace(old, new))
    assert words in said("plan", "job.yaml")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("type: fast", "type: B200X", "unknown device type 'B200X'"),
        ("200 Mbit/s", "200 Megs", "bandwidth: '200 Megs' is not a bandwidth; write it like '25 Gbit/s'"),
        ("count: 2", "count: 1000000000", "less than or equal to 100000"),
        ("[lab, cloud]", "[lab, moon]", "must be two of the sites"),
    ],
)
def test_a_wrong_cluster_is_told_by_field(folder: Path, said: Said, old: str, new: str, words: str) -> None:
    assert old in CLUSTER
    (folder / "cluster.yaml").write_text(CLUSTER.replace(old, new))
    error = said("plan", "job.yaml")
    assert words in error
    assert "cluster.yaml: " in error


def _order(*rows: str) -> Callable[[dict[str, Any]], object]:
    return lambda plan: plan["schedule"].update(order=list(rows))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda plan: plan["schedule"].update(name="magic"), "schedule.name: 'magic' is not known"),
        (_order("0F0"), "1 rows for 4 ranks"),
        (_order("0X0", "", "", ""), "'0X0' is not an action"),
        (_order("", "", "", ""), "expected one forward"),
        (lambda plan: plan["devices"].__setitem__(0, "mars/m0/0"), "no device 'mars/m0/0' in the cluster"),
        (lambda plan: plan["stages"][0]["replicas"][0].update(rank=9), "rank 9 has no device"),
        (lambda plan: plan["transfers"][0].update(codec="int8"), "'int8' is not built yet"),
        (
            lambda plan: plan["cluster"]["device_types"]["slow"].update(memory="100 KiB"),
            "needs",
        ),
    ],
)
def test_a_wrong_plan_is_told_with_its_file(folder: Path, said: Said, change: Any, words: str) -> None:
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    change(plan)
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    error = said("verify", "plan.yaml")
    assert "plan.yaml: " in error
    assert words in error


@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe", b"- 1\n- 2\n", b"a: [", b"a: &a [*a]"])
@pytest.mark.parametrize("command", ["verify", "simulate", "capture"])
def test_what_is_no_such_file_is_told(folder: Path, said: Said, command: str, content: bytes) -> None:
    (folder / "x.yaml").write_bytes(content)
    assert "x.yaml: " in said(command, "x.yaml")


def test_a_port_in_use_is_refused_by_name(folder: Path, said: Said) -> None:
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    plan["micro_batches"] = [32] * 4
    for stage in plan["stages"]:
        for price in stage["prices"]:
            price["samples"] = 128 if stage.get("scope") == "batch" else 32
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used" in said("train", "job.yaml", "--plan", "plan.yaml", "--port", str(port))


def test_a_plan_of_another_batch_is_refused_before_anything_starts(folder: Path, said: Said) -> None:
    assert "8 samples in all, job.yaml has global_batch 128" in said("train", "job.yaml", "--plan", "plan.yaml")


def test_nothing_to_resume_is_told_before_anything_starts(folder: Path, said: Said) -> None:
    assert "no whole checkpoint to resume from" in said("train", "job.yaml", "--plan", "plan.yaml", "--resume")


def test_a_new_run_never_writes_over_anothers_checkpoints(folder: Path, said: Said) -> None:
    state = folder / "run" / "checkpoints" / "step-7" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    (folder / "run" / "log.jsonl").write_text("kept")
    error = said("train", "job.yaml", "--plan", "plan.yaml")
    assert "run: it holds a run with checkpoints up to step-7; go on from there by --resume" in error
    assert state.exists()
    assert (folder / "run" / "log.jsonl").read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "absent"], "is not the folder of a run"),
        (["evaluate", "job.yaml", "--run", "absent"], "no weights there"),
        (["simulate", "plan.yaml", "-o", "/proc/absent/x.json"], "cannot write"),
        (["profile", "job.yaml", "--sizes", "a,b"], "must be numbers of samples"),
    ],
)
def test_other_slips_are_told(folder: Path, said: Said, arguments: list[str], words: str) -> None:
    assert words in said(*arguments)


def test_an_unknown_command_and_option_are_usage_errors(folder: Path, said: Said) -> None:
    assert "No such command" in said("nope", code=2)
    assert "No such option" in said("plan", "job.yaml", "--nope", code=2)

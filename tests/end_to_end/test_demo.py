"""The main job, shortened: capture to report through real processes, then each later command on its run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"


def plait(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "plait", *arguments]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    done = plait("demo", "--steps", "24", "--out", "out", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "stdout.txt").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_it_ends_with_the_accuracy_after_the_table_and_the_paths(demo: Path) -> None:
    lines = (demo / "stdout.txt").read_text().strip().splitlines()
    assert lines[-1].startswith("zero-shot accuracy: ")
    assert lines[-1].endswith("%")
    text = "\n".join(lines)
    for words in ("predicted", "measured", "step time", "bubble ratio", "report.html", "trace.json", "true speed"):
        assert words in text


@pytest.mark.slow
def test_the_run_folder_holds_everything(demo: Path) -> None:
    out = demo / "out"
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == list(range(1, 25))
    assert log[-1]["loss"] < log[0]["loss"]
    for name in ("plan.yaml", "predicted.json", "measured.json", "report.html", "trace.json", "model/config.json"):
        assert (out / name).exists(), name
    assert not (out / "errors").exists()


@pytest.mark.slow
def test_its_weights_are_evaluated_and_its_report_made_again(demo: Path) -> None:
    done = plait("evaluate", "out/job.yaml", "--run", "out", folder=demo)
    assert done.returncode == 0, done.stderr
    before = json.loads((demo / "out" / "summary.json").read_text())
    assert f"{before['metrics']['zero_shot_accuracy']:.4f}" in done.stdout
    done = plait("report", "out", "-o", "again.html", folder=demo)
    assert done.returncode == 0, done.stderr
    assert (demo / "again.html").exists()


@pytest.mark.slow
def test_a_run_is_resumed_to_more_steps(demo: Path) -> None:
    job = (demo / "out" / "job.yaml").read_text().replace("steps: 24", "steps: 28")
    (demo / "longer.yaml").write_text(job)
    done = plait(
        "train", "longer.yaml", "--plan", "out/plan.yaml", "--run-dir", "out", "--resume", "--no-paced", folder=demo
    )
    assert done.returncode == 0, done.stdout + done.stderr
    log = [json.loads(line) for line in (demo / "out" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log] == list(range(1, 29))

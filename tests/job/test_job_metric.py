"""A job's metric is found before training, and what the user's function does wrong is told by its name."""

from pathlib import Path

import pytest
import torch

from plait.errors import FileError, RunError
from plait.job.job import Job
from plait.job.metric import check_metrics, figures_of

JOB = """\
format: plait-job/1
model: {factory: "mine:model"}
global_batch: 4
steps: 1
cluster: cluster.yaml
"""
CODE = """\
def one(outputs, inputs):
    return (outputs["x"] == inputs["y"]).float().mean()

def several(outputs, inputs):
    return {"sum": outputs["x"].sum(), "count": 3}

def wrong(outputs, inputs):
    return outputs["z"]

def words(outputs, inputs):
    return "many"

constant = 3
"""
X = torch.tensor([1.0, 2.0])


def job(folder: Path, rest: str) -> Job:
    (folder / "mine.py").write_text(CODE)
    (folder / "job.yaml").write_text(JOB + rest)
    return Job.load(folder / "job.yaml")


def of_metric(folder: Path, name: str) -> Job:
    return job(folder, f"data: {{factory: 'mine:data'}}\nevaluate: {{metric: 'mine:{name}'}}\n")


@pytest.mark.parametrize(("name", "figures"), [("one", {"one": 0.5}), ("several", {"sum": 3.0, "count": 3.0})])
def test_a_metric_gives_one_number_or_several_by_name(tmp_path: Path, name: str, figures: dict[str, float]) -> None:
    assert figures_of(of_metric(tmp_path, name), {"x": X}, {"y": torch.tensor([1.0, 3.0])}) == figures


def test_a_job_without_a_metric_has_no_figures(tmp_path: Path) -> None:
    assert figures_of(job(tmp_path, "data: {factory: 'mine:data'}\n"), {"x": X}, {}) == {}


@pytest.mark.parametrize(
    ("name", "words"), [("wrong", "mine:wrong raised KeyError: 'z'"), ("words", "mine:words raised ValueError")]
)
def test_a_metric_that_fails_is_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(RunError, match=words):
        figures_of(of_metric(tmp_path, name), {"x": X}, {})


@pytest.mark.parametrize(("name", "words"), [("onne", "is 'one' meant"), ("constant", "mine:constant is of type int")])
def test_a_metric_that_is_not_there_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        check_metrics(of_metric(tmp_path, name))


def test_the_metric_of_every_task_is_looked_for(tmp_path: Path) -> None:
    task = "data: {factory: 'mine:data'}, evaluate: {metric: 'mine:%s'}"
    tasks = f"tasks:\n  a: {{{task % 'one'}}}\n  b: {{{task % 'two'}}}\n"
    with pytest.raises(FileError, match="'two'"):
        check_metrics(job(tmp_path, tasks))

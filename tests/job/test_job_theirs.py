"""The user's own functions: what they raise or give wrongly is told with file, field and line."""

from pathlib import Path
from typing import Any

import pytest

from plait.errors import FileError, RunError
from plait.job.data import data_of
from plait.job.job import Job
from plait.job.model import model_of
from plait.job.tasks import jobs_of

MINE = """
import sys

def broken():
    raise KeyError("shard-7")

def leaving():
    sys.exit(3)

number = 5

class Data:
    def batch(self, step):
        sys.exit("no data")
"""


def job(folder: Path, **fields: Any) -> Job:
    (folder / "mine.py").write_text(MINE)
    given = {"model": {"factory": "mine:broken"}, "global_batch": 4, "steps": 10, "cluster": "c"}
    given |= {} if "tasks" in fields else {"data": {"factory": "mine:Data"}}
    Job.from_data({"format": "plait-job/1"} | given | fields, "job.yaml").save(folder / "job.yaml")
    return Job.load(folder / "job.yaml")


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("broken", r"job\.yaml: data\.options: broken raised KeyError: 'shard-7' \(.*mine\.py:5\)"),
        ("leaving", r"job\.yaml: data\.options: leaving raised SystemExit: 3 \(.*mine\.py:8\)"),
        ("number", r"job\.yaml: data\.factory: mine:number is of type int; a function or class is needed"),
    ],
)
def test_a_factory_that_fails_is_told_with_its_line(tmp_path: Path, factory: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        data_of(job(tmp_path, data={"factory": f"mine:{factory}"}))


def test_a_model_that_fails_to_be_made_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"model\.options: broken raised KeyError: 'shard-7' \(.*mine\.py:5\)"):
        model_of(job(tmp_path))


def test_data_that_leave_the_program_are_told_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"data: mine:Data raised SystemExit: no data \(.*mine\.py:14\)"):
        data_of(job(tmp_path)).first()


def test_what_is_wrong_in_a_task_is_told_with_the_task(tmp_path: Path) -> None:
    task = {"data": {"factory": "mine:number"}}
    one = jobs_of(job(tmp_path, tasks={"a": task, "b": task}))["b"]
    with pytest.raises(FileError, match=r"job\.yaml: tasks\.b\.data\.factory: "):
        data_of(one)

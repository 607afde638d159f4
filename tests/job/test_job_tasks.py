"""Tasks of a job take turns, and each is a job of its own."""

from pathlib import Path

import pytest

from plait.errors import FileError
from plait.job.job import Job
from plait.job.tasks import Turns, file_of, jobs_of, main_task

TEXT = """\
format: plait-job/1
model: {factory: "m:make"}
tasks:
  image: {data: {factory: "m:images"}, loss: "m:loss"}
  text: {data: {factory: "m:texts"}, turns: 3}
global_batch: 8
steps: 10
cluster: cluster.yaml
"""


def test_a_tasks_turns_are_spread_over_the_round() -> None:
    assert Turns.of({"image": 2, "text": 2}).round == ("image", "text", "image", "text")
    assert Turns.of({"image": 1, "text": 3}).round == ("text", "image", "text", "text")


def test_a_task_goes_on_with_its_own_next_batch() -> None:
    turns = Turns.of({"image": 1, "text": 2})
    seen: dict[str, list[int]] = {"image": [], "text": []}
    for step in range(9):
        task, number = turns.at(step)
        seen[task].append(number)
    assert seen == {"image": [0, 1, 2], "text": [0, 1, 2, 3, 4, 5]}


def test_a_task_is_a_job_with_its_own_data_and_loss() -> None:
    job = Job.parse(TEXT)
    jobs = jobs_of(job)
    data = {name: one.data.factory for name, one in jobs.items() if one.data}
    assert data == {"image": "m:images", "text": "m:texts"}
    assert (jobs["image"].loss, jobs["text"].loss) == ("m:loss", None)
    assert main_task(job) == "text"
    assert file_of(Path("runs/plan.yaml"), "text") == Path("runs/plan.text.yaml")
    assert file_of(Path("runs/plan.yaml"), "") == Path("runs/plan.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 10", "steps: 10\ndata: {factory: 'm:all'}", "give either data or tasks"),
        ("steps: 10", "steps: 10\noutputs: [scores]", "with tasks each task has its own"),
        ("turns: 3", "turns: 0", r"tasks\.text\.turns"),
        ("  text:", "  a/b:", "a/b"),
    ],
)
def test_what_contradicts_itself_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        Job.parse(TEXT.replace(old, new))


def test_a_job_needs_data_or_tasks() -> None:
    text = "format: plait-job/1\nmodel: {factory: 'm:make'}\nglobal_batch: 8\nsteps: 1\ncluster: c.yaml\n"
    with pytest.raises(FileError, match="give either data or tasks"):
        Job.parse(text)

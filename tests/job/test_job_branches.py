"""A job may describe its model, or each task's, by hand."""

from pathlib import Path

import pytest

from plait.errors import FileError
from plait.job.job import Job
from plait.job.model import branches_of
from plait.job.tasks import jobs_of
from support.by_hand import branches, pair

TEXT = """\
format: plait-job/1
model: {factory: "m:make", branches: "support.by_hand:branches"}
tasks:
  image: {data: {factory: "m:images"}}
  text: {data: {factory: "m:texts"}, branches: "m:texts_by_hand"}
global_batch: 8
steps: 10
cluster: cluster.yaml
"""


def test_the_function_is_called_with_the_model() -> None:
    found = branches_of(Job.parse(TEXT), pair()[0])
    assert found is not None
    assert list(found.branches) == list(branches().branches)


def test_a_task_may_have_its_own() -> None:
    found = {name: job.model.branches for name, job in jobs_of(Job.parse(TEXT)).items()}
    assert found == {"image": "support.by_hand:branches", "text": "m:texts_by_hand"}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("support.by_hand:pair", r"model\.branches: .*pair"),
        ("support.by_hand:as_is", r"model\.branches: support\.by_hand:as_is gives a Pair, no plait\.Branches"),
        ("support.by_hand:branch", r"model\.branches: .*has no 'branch'"),
    ],
)
def test_what_is_wrong_is_said_of_the_field(tmp_path: Path, reference: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(TEXT.replace("support.by_hand:branches", reference))
    with pytest.raises(FileError, match=message):
        branches_of(Job.load(tmp_path / "job.yaml"), pair()[0])

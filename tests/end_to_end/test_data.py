"""A run goes on with the samples that would have come next, also under another plan."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plait.cli.app import run
from plait.job.job import Job
from plait.plan.plan import Plan

JOB = """\
format: plait-job/1
model: {factory: "mine:Towers"}
data: {factory: "mine:Stream"}
loss: mine:distance
optimizer: {name: SGD, options: {lr: 0.1}}
global_batch: 4
micro_batch: 2
steps: 5
cluster: two.yaml
checkpoint: {every: 2}
"""

CODE = """\
import torch
from torch import nn
from torch.utils.data import IterableDataset

def tower():
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))

class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = tower(), tower()

    def forward(self, left, right):
        return self.left(left), self.right(right)

def distance(result, batch):
    return (result[0] - result[1]).square().mean()

class Stream(IterableDataset):
    def __iter__(self):
        for index in range(10):
            one = torch.Generator().manual_seed(index)
            yield {"left": torch.randn(8, generator=one), "right": torch.randn(8, generator=one)}
"""

CLUSTER = """\
format: plait-cluster/1
device_types: {core: {like: local, memory: 1 GiB}}
sites: [{name: here, nodes: [{name: n0, devices: [{type: core, count: COUNT}]}]}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of five steps over an epoch of 4, 4 and 2 samples, planned for two devices and for one, and trained."""
    made = tmp_path_factory.mktemp("data")
    (made / "mine.py").write_text(CODE)
    (made / "two.yaml").write_text(CLUSTER.replace("COUNT", "2"))
    (made / "one.yaml").write_text(CLUSTER.replace("COUNT", "1"))
    (made / "job.yaml").write_text(JOB)
    (made / "short.yaml").write_text(JOB.replace("steps: 5", "steps: 3"))
    (made / "alone.yaml").write_text(JOB.replace("two.yaml", "one.yaml"))
    assert run(["plan", str(made / "job.yaml"), "-o", str(made / "two.plan.yaml"), "--all-devices"]) == 0
    assert run(["plan", str(made / "alone.yaml"), "-o", str(made / "one.plan.yaml")]) == 0
    assert train(made, "job", "two", "whole") == 0
    return made


def train(folder: Path, job: str, plan: str, to: str, *options: str) -> int:
    planned, made = str(folder / f"{plan}.plan.yaml"), str(folder / to)
    return run(["train", str(folder / f"{job}.yaml"), "--plan", planned, "--run-dir", made, *options])


def losses(folder: Path, name: str) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / name / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_run_resumed_under_another_plan_has_the_samples_that_would_have_come_next(folder: Path) -> None:
    devices = [len(Plan.load(folder / f"{name}.plan.yaml").devices) for name in ("two", "one")]
    assert devices == [2, 1]
    assert train(folder, "short", "two", "parts") == 0
    assert train(folder, "alone", "one", "parts", "--resume") == 0
    whole = losses(folder, "whole")
    assert len(set(whole)) == 5
    assert losses(folder, "parts") == pytest.approx(whole, rel=1e-5)
    weights = [load_file(folder / name / "model" / "model.safetensors") for name in ("whole", "parts")]
    assert all(torch.allclose(weights[1][name], tensor, atol=1e-6) for name, tensor in weights[0].items())


@pytest.mark.slow
def test_the_last_short_batch_of_an_epoch_counts_as_any_other(folder: Path) -> None:
    from plait.job.data import data_of
    from plait.job.model import model_of

    job = Job.load(folder / "job.yaml")
    model, batches = model_of(job), data_of(job).batches(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(job.steps):
        batch = next(batches).whole
        optimizer.zero_grad()
        left, right = model(**batch)
        loss = (left - right).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert len(batch["left"]) == 4
    assert losses(folder, "whole") == pytest.approx(found, rel=1e-5)

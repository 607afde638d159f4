"""A job whose tasks alternate is captured, planned, trained, resumed and evaluated by the commands."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from plait.cli.app import run
from plait.job.job import Job
from plait.job.tasks import jobs_of, turns_of
from plait.model.graph import BranchGraph
from plait.plan.plan import Plan

JOB = """\
format: plait-job/1
model: {factory: "perceiver:model"}
tasks:
  classify:
    data: {factory: "perceiver:Task", options: {names: [classify]}}
    outputs: [scores]
    evaluate: {metric: "perceiver:accuracy"}
  match:
    data: {factory: "perceiver:Task", options: {names: [match]}}
    loss: perceiver:doubled
    turns: 2
optimizer: {name: SGD, options: {lr: 0.1}}
global_batch: 4
micro_batch: 2
steps: 7
cluster: cluster.yaml
checkpoint: {every: 3}
"""

CODE = """\
import torch
from plait.model import zoo

def model():
    return zoo.multi_task()[0]

class Task:
    def __init__(self, names, batch=4, seed=0):
        self.names, self.samples, self.seed = tuple(names), batch, seed

    def batch(self, step):
        torch.manual_seed(1000 * self.seed + step)
        return zoo.multi_task(tasks=self.names, samples=self.samples)[1]

    def held_out(self):
        return [self.batch(99)]

def doubled(result, batch):
    return 2 * result["loss"]

def accuracy(outputs, inputs):
    return (outputs["scores"].argmax(-1) == inputs["label"]).float().mean()
"""

CLUSTER = """\
format: plait-cluster/1
device_types: {core: {like: local, memory: 1 GiB}}
sites: [{name: here, nodes: [{name: n0, devices: [{type: core, count: 2}]}]}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job, planned and trained to its last step."""
    made = tmp_path_factory.mktemp("tasks")
    for name, text in {"job.yaml": JOB, "perceiver.py": CODE, "cluster.yaml": CLUSTER}.items():
        (made / name).write_text(text)
    assert run(["plan", str(made / "job.yaml"), "-o", str(made / "plan.yaml")]) == 0
    assert train(made) == 0
    return made


def train(folder: Path, *options: str) -> int:
    plan, to = str(folder / "plan.yaml"), str(folder / "run")
    return run(["train", str(folder / "job.yaml"), "--plan", plan, "--run-dir", to, *options])


def alone(job: Job) -> dict[str, torch.Tensor]:
    """The weights after the same steps in one process."""
    from plait.job.data import data_of
    from plait.job.model import model_of

    model, turns, steps = model_of(job), turns_of(job), range(job.steps)
    data = {name: data_of(one) for name, one in jobs_of(job).items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sources = {name: one.batches(0) for name, one in data.items()}
    for task, _ in map(turns.at, steps):
        optimizer.zero_grad()
        loss = model(**next(sources[task]).whole)["loss"] * (2 if task == "match" else 1)
        loss.backward()
        optimizer.step()
    return {n: p.detach() for n, p in model.named_parameters()}


def alone_on_match(folder: Path) -> float:
    """The held-out loss of the task ``match`` in one process, of the trained weights."""
    from plait.job.data import data_of
    from plait.job.model import model_of

    job = Job.load(folder / "job.yaml")
    model = model_of(job)
    model.load_state_dict(load_file(folder / "run" / "model" / "model.safetensors"), strict=False)
    (batch,) = data_of(jobs_of(job)["match"]).held_out()
    with torch.no_grad():
        return 2 * float(model(**batch)["loss"])


@pytest.mark.slow
def test_weights_are_those_of_the_same_turns_in_one_process(folder: Path) -> None:
    found = load_file(folder / "run" / "model" / "model.safetensors")
    expected = alone(Job.load(folder / "job.yaml"))
    assert set(found) == set(expected)  # also what no task uses: next_word
    for name, tensor in found.items():
        assert torch.allclose(tensor, expected[name], atol=1e-5), name


@pytest.mark.slow
def test_every_task_has_its_plan_on_the_same_devices_and_its_turns_in_the_log(folder: Path) -> None:
    plans = {name: Plan.load(folder / f"plan.{name}.yaml") for name in ("classify", "match")}
    assert len({plan.devices for plan in plans.values()}) == 1
    rows = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    turns = turns_of(Job.load(folder / "job.yaml"))
    assert [row["task"] for row in rows] == [turns.at(step)[0] for step in range(7)]
    assert (folder / "run" / "report.html").exists()


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_task_whose_turn_it_is(folder: Path) -> None:
    model = folder / "run" / "model" / "model.safetensors"
    expected = load_file(model)
    shutil.rmtree(folder / "run" / "checkpoints" / "step-7")
    model.unlink()
    assert train(folder, "--resume") == 0
    found = load_file(model)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_tasks_are_evaluated_by_their_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(folder / "job.yaml"), "--run", str(folder / "run")]) == 0
    printed = capsys.readouterr().out
    figures = json.loads((folder / "run" / "summary.json").read_text())
    assert f"classify held-out loss: {figures['held_out_loss']:.4f}" in printed
    assert f"classify accuracy: {figures['metrics']['classify accuracy']:.4f}" in printed
    assert figures["held_out_losses"] == {"classify": pytest.approx(figures["held_out_loss"])}


@pytest.mark.slow
def test_without_a_metric_every_tasks_held_out_loss_is_evaluated(folder: Path) -> None:
    (folder / "plain.yaml").write_text(JOB.replace('    evaluate: {metric: "perceiver:accuracy"}\n', ""))
    before = json.loads((folder / "run" / "summary.json").read_text())["held_out_losses"]["classify"]
    assert run(["evaluate", str(folder / "plain.yaml"), "--run", str(folder / "run")]) == 0
    figures = json.loads((folder / "run" / "summary.json").read_text())
    assert figures["held_out_losses"] == {
        "classify": pytest.approx(before),
        "match": pytest.approx(alone_on_match(folder)),
    }


def test_capture_gives_each_task_its_graph(tmp_path: Path) -> None:
    for name, text in {"job.yaml": JOB, "perceiver.py": CODE}.items():
        (tmp_path / name).write_text(text)
    assert run(["capture", str(tmp_path / "job.yaml"), "-o", str(tmp_path / "graph.yaml")]) == 0
    graphs = {name: BranchGraph.load(tmp_path / f"graph.{name}.yaml") for name in ("classify", "match")}
    assert {name: len(graph.branches) for name, graph in graphs.items()} == {"classify": 1, "match": 3}

"""A model that export refuses, described by hand: everything after capture works as for any other model."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from plait.cli.app import run
from plait.errors import PlanError
from plait.model.capture import capture
from plait.model.graph import BranchGraph
from plait.plan.plan import Plan
from plait.runtime.parts import capture_for
from support import by_hand, gradients, partitions
from support.pool import Pool


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    model, batch = by_hand.pair()
    graph = capture(model, batch, branches=by_hand.branches()).graph
    return {way: partitions.plan_by(graph, 3, homes(graph, 3)) for way, homes in partitions.WAYS.items()}


def test_gradients_equal_the_unpartitioned_model_under_three_partitions(ranks: Pool, plans: dict[str, Plan]) -> None:
    expected = gradients.of_model(by_hand.pair)
    for way, plan in plans.items():
        found = gradients.run(ranks, by_hand.pair, plan, by_hand.branches)
        assert gradients.error(found, expected) <= 1, way


def test_a_rank_finds_the_same_graph_though_it_has_no_weights(plans: dict[str, Plan]) -> None:
    model, batch = by_hand.pair()
    graph = capture(model, batch, branches=by_hand.branches()).graph
    found = capture_for(model.to("meta"), plans["opposed"], None, by_hand.branches()).graph
    assert found.fingerprint == graph.fingerprint
    assert found.losses == graph.losses
    assert [x.parameters for x in found.layers] == [x.parameters for x in graph.layers]


def test_a_plan_goes_with_the_description_that_it_was_made_for(plans: dict[str, Plan]) -> None:
    model, _ = by_hand.pair()
    with pytest.raises(PlanError, match=r"Pair described by hand; give its plait\.Branches"):
        capture_for(model, plans["opposed"], None)
    with pytest.raises(PlanError, match="another"):
        capture_for(nn.ModuleDict({"vision": model.vision}), plans["opposed"], None, by_hand.branches())


JOB = """\
format: plait-job/1
model: {factory: "support.by_hand:pair_model", branches: "support.by_hand:branches"}
data: {factory: "support.by_hand:Pairs"}
outputs: [image_embeds]
evaluate: {metric: "support.by_hand:width"}
optimizer: {name: SGD, options: {lr: 0.1}}
global_batch: 8
micro_batch: 2
steps: 3
cluster: cluster.yaml
"""

CLUSTER = """\
format: plait-cluster/1
device_types: {core: {like: local, memory: 1 GiB}}
sites: [{name: here, nodes: [{name: n0, devices: [{type: core, count: 2}]}]}]
"""


@pytest.mark.slow
def test_a_job_is_captured_profiled_planned_trained_and_evaluated_by_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}")
    for name, text in {"job.yaml": JOB, "cluster.yaml": CLUSTER}.items():
        (tmp_path / name).write_text(text)
    job, profile, plan, folder = (str(tmp_path / n) for n in ("job.yaml", "profile.json", "plan.yaml", "run"))
    assert run(["capture", job, "-o", str(tmp_path / "graph.yaml")]) == 0
    assert list(BranchGraph.load(tmp_path / "graph.yaml").branches) == ["vision", "text", "joint"]
    assert run(["profile", job, "-o", profile]) == 0
    assert run(["plan", job, "--profile", profile, "-o", plan]) == 0
    assert run(["train", job, "--plan", plan, "--run-dir", folder]) == 0
    assert run(["evaluate", job, "--run", folder]) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert losses == pytest.approx(_alone(), rel=1e-5)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"] == {"width": by_hand.WIDTH}


def _alone() -> list[float]:
    """The losses of the same steps in one process."""
    model, batch = by_hand.pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found

"""When a rank dies, hangs or raises, every rank ends soon and says who waited for whom; the checkpoint is whole."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plait.model.capture import capture
from plait.plan.plan import Plan
from plait.runtime.checkpoint import latest, read_state
from support import jobs, models
from support.plans import plan_of
from support.pool import Pool, RankError

HERE = Path(__file__).parent
SOURCES = HERE.parents[1] / "src"


@pytest.fixture(scope="module")
def plan() -> Plan:
    graph = capture(*models.clip()).graph
    spread = {"vision_model": [0, 1], "text_model": [1, 0], "loss": [1]}
    return plan_of(graph, 2, spread, "branch_aware", [4, 4])


def torchrun(script: Path, ranks: int, *args: str, wait: float = 20) -> tuple[int, str, float]:
    """Exit code, all output, and the seconds it took."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(SOURCES), str(HERE.parent)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WAIT": str(wait)}
    began = time.monotonic()
    done = subprocess.run(
        [*command, str(script), *args], check=False, env=env, capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.parametrize("accident", ["kill", "raise", "hang"])
def test_an_accident_ends_all_ranks_and_names_the_cause(plan: Plan, tmp_path: Path, accident: str) -> None:
    plan.save(tmp_path / "plan.yaml")
    checkpoints = tmp_path / "checkpoints"
    args = (str(tmp_path / "plan.yaml"), "3", str(checkpoints), accident)
    code, output, _ = torchrun(HERE / "train_script.py", 2, *args, wait=5)
    assert code != 0
    assert "rank 0 (here/n0/0)" in output
    assert "rank 1 (here/n0/1)" in output
    assert "micro-batch" in output or "every rank" in output
    if accident == "raise":
        assert "the data of rank 1 are broken" in output
    if accident == "hang":
        assert "time-out passed" in output
    saved = latest(checkpoints)
    assert saved is not None
    assert read_state(saved)["step"] == 2


@pytest.mark.slow
def test_the_wrong_number_of_processes_is_told(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.yaml")
    code, output, _ = torchrun(HERE / "train_script.py", 3, str(tmp_path / "plan.yaml"), "1", "", "")
    assert code != 0
    assert "needs 2 ranks, but 3 processes were started" in output


def test_a_plan_for_another_model_is_refused(ranks: Pool, plan: Plan) -> None:
    with pytest.raises(RankError, match="the plan is for another model: CLIPModel"):
        ranks.run(2, jobs.train, models.smaller_clip, plan.dump())


def test_ranks_of_one_node_on_two_machines_are_refused(ranks: Pool, plan: Plan) -> None:
    with pytest.raises(RankError, match="puts ranks 0 and 1 on node n0, but they run on host-0 and host-1"):
        ranks.run(2, jobs.train_on_another_host, models.clip, plan.dump())

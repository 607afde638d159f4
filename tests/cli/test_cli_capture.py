"""``plait capture``: tables and a picture of a job's model, or of one that a function makes."""

from pathlib import Path

import pytest

from plait.cli.app import run
from plait.cli.demo import examples
from plait.model.graph import BranchGraph

DIGITS = examples() / "digits"
MODELS = """
from plait.model import zoo

def pair():
    return zoo.two_towers()

def model():
    return zoo.two_towers()[0]

def batch():
    return zoo.two_towers()[1]

def nothing():
    return 3

def three(model):
    return 3

value = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "towers_here.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_jobs_model_that_no_memory_holds_is_captured_without_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DIGITS / "job.yaml").read_text() + f"modules: {DIGITS}\n"
    large = text.replace("hidden_size: 64\n", "hidden_size: 65536\n").replace("_size: 128\n", "_size: 262144\n")
    Path("job.yaml").write_text(large.replace("num_hidden_layers: 4", "num_hidden_layers: 8"))
    assert run(["capture", "job.yaml", "-o", "graph.yaml"]) == 0
    graph = BranchGraph.load("graph.yaml")
    assert sum(p.nbytes for p in graph.parameters().values()) > 2**40
    assert {loss.scope for loss in graph.losses} == {"batch"}
    assert "note: the weights are absent" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("arguments", [["towers_here:pair"], ["towers_here:model", "--example", "towers_here:batch"]])
def test_a_function_of_the_users_is_captured(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", *arguments, "-o", "graph.yaml", "--draw", "graph.svg"]) == 0
    graph = BranchGraph.load("graph.yaml")
    assert len(graph.branches) == 3
    assert Path("graph.svg").read_text().startswith("<svg")
    shown = capsys.readouterr().out
    assert [title for title in ("Branches of TwoTowers", "Interactions", "Loss") if title not in shown] == []
    assert [name for name in graph.branches if name not in shown] == []


def test_a_scope_given_on_the_command_line_is_obeyed_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["capture", "towers_here:pair", "--scope", "loss=batch", "-o", "graph.yaml"]) == 0
    assert [loss.scope for loss in BranchGraph.load("graph.yaml").losses] == ["batch"]
    assert "note: loss: scope batch, as given" in capsys.readouterr().out


def test_a_model_described_by_hand_is_captured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = ["--branches", "support.by_hand:branches"]
    assert run(["capture", "support.by_hand:pair", *described, "-o", str(folder / "graph.yaml")]) == 0
    assert list(BranchGraph.load("graph.yaml").branches) == ["vision", "text", "joint"]
    assert "Branches of Pair" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["towers_here:pair", "--draw", "graph.html"], "graph.html: a graph is drawn as SVG"),
        (["towers_here:pair", "--draw", "graph"], "ends in .svg, such as graph.svg"),
        (["towers_here:model"], "give --example module:function"),
        (["towers_here:nothing", "--example", "towers_here:batch"], "gives a int, no nn.Module"),
        (["towers_here:model", "--example", "towers_here:nothing"], "it must be tensors by name"),
        (["towers_here:value"], "a function or class is needed"),
        (["towers_here:pair", "--branches", "towers_here:three"], "branches: it is a int; give plait.Branches"),
        (["towers_here:pear"], "is 'pair' meant?"),
        (["absent_here:pair"], "MODEL: no module 'absent_here'"),
        (["towers_here:pair", "--scope", "loss"], "'loss' must be written NAME=SCOPE"),
        (["towers_here:pair", "--scope", "lost=batch"], "'lost'; the loss terms are loss"),
        (["job.yaml", "--example", "towers_here:batch"], "a job has its own data, loss and branches"),
        (["job.yaml"], "job.yaml: cannot read"),
    ],
)
def test_what_is_wrong_is_told(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["capture", *arguments]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error

"""Scopes that the user gives are obeyed, and the graph tells what that means."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import capture, retrace
from plait.model.graph import BranchGraph, Scope

WIDTH = 8


def again(model: nn.Module, graph: BranchGraph) -> BranchGraph:
    """What a rank makes of the model, by what the plan holds of the graph."""
    return retrace(model, graph.inputs, graph.losses, graph.outputs, mixing=graph.mixing).graph


def scopes(graph: BranchGraph) -> Mapping[str, str]:
    return {term.value: term.scope for term in graph.losses}


def test_a_contrastive_loss_may_be_told_to_contrast_within_micro_batches() -> None:
    model, batch = zoo.clip()
    graph = capture(model, batch, scopes={"loss": "microbatch"}).graph
    assert scopes(graph) == {"loss": Scope.MICROBATCH}
    assert {layer.scope for layer in graph.layers} == {Scope.MICROBATCH}
    assert again(model, graph) == graph.model_copy(update={"notes": again(model, graph).notes})


def test_the_note_tells_the_measured_difference() -> None:
    model, batch = zoo.clip()
    (note,) = capture(model, batch, scopes={"loss": "microbatch"}).graph.notes
    assert "loss: scope microbatch, as given, contrary to what was found by trying (batch)" in note
    assert "a batch of 5 samples gives" in note
    assert "% off" in note


def test_a_needless_batch_scope_is_told() -> None:
    model, batch = zoo.two_towers()
    graph = capture(model, batch, scopes={"loss": "batch"}).graph
    assert scopes(graph) == {"loss": Scope.BATCH}
    assert graph.notes[0] == (
        "loss: scope batch, as given; trying found microbatch, with which micro-batches needn't wait"
    )
    assert again(model, graph).fingerprint == graph.fingerprint


def test_a_scope_that_trying_finds_too_needs_no_note() -> None:
    model, batch = zoo.two_towers()
    assert capture(model, batch, scopes={"loss": "microbatch"}).graph.notes == capture(model, batch).graph.notes


def test_a_token_mean_may_be_told_to_be_a_mean_over_samples() -> None:
    model, batch = zoo.gpt2()
    graph = capture(model, batch, scopes={"loss": "microbatch"}).graph
    assert scopes(graph) == {"loss": Scope.MICROBATCH}
    assert "contrary to what was found by trying (weighted weighted by" not in graph.notes[0]
    assert "(weighted by" in graph.notes[0]


class Pairs(nn.Module):
    """Two losses: of each sample, and over all pairs that ends as a mean over samples."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.one(x), self.two(y)
        pairs = functional.softplus(-a @ b.T).sum(1).mean()
        loss: Tensor = (a - b).square().mean() + 0.5 * pairs
        return loss


def rows() -> Tensor:
    return torch.randn(4, WIDTH)


def test_the_terms_of_a_loss_are_told_one_by_one() -> None:
    model = Pairs()
    batch = {"x": rows(), "y": rows()}
    found = scopes(capture(model, batch).graph)
    pairs = next(name for name, scope in found.items() if scope is Scope.BATCH)
    graph = capture(model, batch, scopes={pairs: "microbatch"}).graph
    assert set(scopes(graph)) == set(found)
    assert set(scopes(graph).values()) == {Scope.MICROBATCH}
    assert again(model, graph).fingerprint == graph.fingerprint


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.out(self.norm(self.into(x))).square().mean()
        return loss


def test_a_norm_told_to_work_on_each_micro_batch_is_noted_with_its_difference() -> None:
    graph = capture(Normed(), {"x": rows()}, scopes={"norm": "microbatch"}).graph
    assert {layer.scope for layer in graph.layers} == {Scope.MICROBATCH}
    assert "norm: scope microbatch, as given, though it mixes samples" in graph.notes[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lost": "batch"}, r"no loss term or module 'lost'; the loss terms are loss, the modules into, norm, out"),
        ({"loss": "global"}, r"loss: 'global' is not a scope; it is microbatch, weighted, batch"),
        ({"norm": "weighted"}, r"norm is a module; it can have the scope batch or microbatch"),
        ({"loss": "weighted"}, r"said to be weighted, but it divides by no count"),
    ],
)
def test_what_cannot_be_is_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(CaptureError, match=words):
        capture(Normed(), {"x": rows()}, scopes=given)


def test_a_loss_behind_a_module_that_mixes_samples_names_it() -> None:
    class Last(Normed):
        def forward(self, x: Tensor) -> Tensor:
            loss: Tensor = self.norm(self.into(x)).square().sum(1).log().mean()
            return loss

    with pytest.raises(CaptureError, match=r"stands behind what mixes samples; .*\(norm: microbatch\)"):
        capture(Last(), {"x": rows()}, scopes={"loss": "microbatch"})
    both = capture(Last(), {"x": rows()}, scopes={"loss": "microbatch", "norm": "microbatch"}).graph
    assert scopes(both) == {"loss": Scope.MICROBATCH}


def test_the_whole_loss_and_its_terms_are_not_told_at_once() -> None:
    model, batch = Pairs(), {"x": rows(), "y": rows()}
    part = next(iter(scopes(capture(model, batch).graph)))
    with pytest.raises(CaptureError, match="not both"):
        capture(model, batch, scopes={part: "batch", "loss": "batch"})

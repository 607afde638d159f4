"""Capture of models on the meta device: the graph is that of the model with weights, and no weights are made."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import capture
from plait.model.deferred import deferred
from plait.model.graph import BranchGraph, Scope
from support.memory import taken

UNTRIED = "the weights are absent"


def bare(graph: BranchGraph) -> BranchGraph:
    """``graph`` without its notes."""
    return graph.model_copy(update={"notes": ()})


@pytest.mark.parametrize("name", ["gpt2", "siamese", "two_towers", "albef"])
def test_the_graph_is_that_of_the_model_with_weights(name: str) -> None:
    make: Callable[..., zoo.Example] = getattr(zoo, name)
    model, batch = make()
    expected = capture(model, batch).graph
    found = capture(deferred(lambda: make()[0]), batch).graph
    assert bare(found) == bare(expected)
    assert set(expected.notes) < set(found.notes)
    assert any(note.startswith(UNTRIED) for note in found.notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clip", "siglip", "t5", "llava", "bert", "mllama", "recommender", "flava"])
def test_the_graph_of_more_models_is_that_of_the_model_with_weights(name: str) -> None:
    test_the_graph_is_that_of_the_model_with_weights(name)


class Head(nn.Module):
    """A model of two linear modules with a loss of its own."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], *between: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), *between)
        self.last = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
        self.loss = loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss."""
        return self.loss(self.last(self.first(x)).flatten(), y)


BATCH = {"x": torch.linspace(-1, 1, 16).reshape(4, 4), "y": torch.tensor([0.1, 0.9, 0.5, 0.3])}


def on_meta(*given: nn.Module, loss: Callable[[Tensor, Tensor], Tensor] = functional.mse_loss) -> BranchGraph:
    """The graph of a Head on the meta device."""
    with torch.device("meta"):
        model = Head(loss, *given)
    return capture(model, BATCH).graph


def test_scopes_of_losses_are_found_by_trying_the_glue() -> None:
    assert [t.scope for t in on_meta().losses] == [Scope.MICROBATCH]
    assert [t.scope for t in on_meta(loss=lambda p, y: (p - y).std()).losses] == [Scope.BATCH]


def test_a_loss_that_needs_probabilities_gets_numbers_from_0_to_1() -> None:
    assert [t.scope for t in on_meta(loss=functional.binary_cross_entropy).losses] == [Scope.MICROBATCH]
    assert [t.scope for t in on_meta(loss=lambda p, y: (-y * p.log()).mean()).losses] == [Scope.MICROBATCH]


def test_what_no_numbers_can_go_through_is_told() -> None:
    with pytest.raises(CaptureError, match=r"test_model_standins\.py.* capture the model with weights"):
        on_meta(loss=lambda p, y: functional.binary_cross_entropy(p + 2, y))


def test_a_batch_norm_in_a_module_mixes_samples_and_another_norm_does_not() -> None:
    with torch.device("meta"):
        norms = nn.BatchNorm1d(4), nn.LayerNorm(4)
    assert [[x.name for x in on_meta(n).layers if x.scope is Scope.BATCH] for n in norms] == [["first.1"], []]


def test_an_example_batch_on_the_meta_device_will_do() -> None:
    make = zoo.two_towers
    model, batch = make()
    with torch.device("meta"):
        absent, _ = make()
    found = capture(absent, {name: tensor.to("meta") for name, tensor in batch.items()}).graph
    assert bare(found) == bare(capture(model, batch).graph)


class Judge(nn.Module):
    """A module with weights that gives one number for all samples."""

    def __init__(self, width: int, loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(4, width)
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        """The number."""
        return self.loss(self.inner(x).square())


class Judged(nn.Module):
    """Its loss comes out of a module."""

    def __init__(self, width: int, loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.judge = Judge(width, loss)

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        loss: Tensor = self.judge(self.body(x))
        return loss


@pytest.mark.parametrize(("loss", "scope"), [(torch.mean, Scope.MICROBATCH), (torch.std, Scope.BATCH)])
def test_a_loss_out_of_a_small_module_is_tried_with_random_weights(
    loss: Callable[[Tensor], Tensor], scope: Scope
) -> None:
    with torch.device("meta"):
        model = Judged(8, loss)
    graph = capture(model, {"x": BATCH["x"]}).graph
    assert [t.scope for t in graph.losses] == [scope]
    assert len([note for note in graph.notes if "tried" in note]) == 1
    assert all(p.is_meta for p in model.parameters())


def test_a_loss_out_of_a_large_module_is_over_the_whole_batch_unless_its_scope_is_given() -> None:
    with torch.device("meta"):
        model = Judged(2**20, torch.mean)
    graph = capture(model, {"x": BATCH["x"]}).graph
    assert [t.scope for t in graph.losses] == [Scope.BATCH]
    assert any(note.startswith("judge: gives a value over all samples") for note in graph.notes)
    told = capture(model, {"x": BATCH["x"]}, scopes={"loss": "microbatch"}).graph
    assert [t.scope for t in told.losses] == [Scope.MICROBATCH]


class Weighing(nn.Module):
    """Multiplies by weights of its own, outside any module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Linear(width, 8)
        self.weight = nn.Parameter(torch.ones(8, width))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        """The loss."""
        found: Tensor = self.body(x)
        return (functional.linear(x, self.weight) + self.scale * found).square().mean()


@pytest.mark.parametrize("width", [16, 2**15])
def test_weights_in_the_glue_are_stood_in_for(width: int) -> None:
    batch = {"x": torch.randn(4, width)}
    with torch.device("meta"):
        model = Weighing(width)
    assert bare(capture(model, batch).graph) == bare(capture(Weighing(width), batch).graph)


def test_no_weights_are_made_of_a_model_of_more_than_ten_gigabytes() -> None:
    with torch.device("meta"):
        model, _ = zoo.three_towers(layers=(2, 2, 2), width=8192)
    assert sum(p.nbytes for p in model.parameters()) > 10 * 2**30
    captured, most, _ = taken(lambda: capture(model, zoo.three_towers()[1]))
    assert 2**20 < most < 100 * 2**20  # activations alone
    assert sum(p.nbytes for p in captured.graph.parameters().values()) > 10 * 2**30

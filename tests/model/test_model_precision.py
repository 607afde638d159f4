"""A graph in another precision: the same layers and losses, other dtypes and bytes."""

import pytest
import torch

from plait.cost.memory import fixed_bytes
from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import capture, retrace
from plait.model.graph import BranchGraph
from plait.model.precision import Precision


@pytest.fixture(scope="module")
def graphs() -> dict[str, BranchGraph]:
    torch.manual_seed(0)
    model, batch = zoo.llava_projector()
    return {p: capture(model, batch, precision=p).graph for p in Precision}


def test_layers_losses_and_inputs_stay(graphs: dict[str, BranchGraph]) -> None:
    plain = graphs["fp32"]
    for other in (graphs["bf16"], graphs["bf16-params"]):
        assert [(x.name, x.reads, x.writes) for x in other.layers] == [
            (x.name, x.reads, x.writes) for x in plain.layers
        ]
        assert (other.losses, other.inputs, other.notes) == (plain.losses, plain.inputs, plain.notes)
        assert other.fingerprint != plain.fingerprint


def test_under_autocast_values_have_the_dtype_that_it_gives(graphs: dict[str, BranchGraph]) -> None:
    values = graphs["bf16"].values
    projected = values["model.multi_modal_projector"]  # a linear layer's output
    assert (projected.dtype, values["model.language_model.layers.0"].dtype) == ("bfloat16", "float32")
    assert 2 * projected.nbytes(1) == graphs["fp32"].values["model.multi_modal_projector"].nbytes(1)
    assert {p.dtype for p in graphs["bf16"].parameters().values()} == {"float32"}


def test_masters_and_their_gradients_are_counted_for_what_learns(graphs: dict[str, BranchGraph]) -> None:
    plain, half = ({n: p.nbytes for n, p in graphs[k].parameters().items()} for k in ("fp32", "bf16-params"))
    assert half == {name: nbytes / 2 for name, nbytes in plain.items()}
    learning = sum(plain[n] for n, p in graphs["fp32"].parameters().items() if p.trainable)
    found = fixed_bytes(graphs["bf16-params"].parameters().values())
    # Adam: two moments and the master, all in fp32 as is the gradient.
    assert (found.gradients, found.optimizer) == (learning, 3 * learning)


def test_a_rank_finds_the_same_graph_whatever_its_weights_are_in() -> None:
    torch.manual_seed(0)
    model, batch = zoo.two_towers()
    for precision in (Precision.BF16, Precision.BF16_PARAMS):
        graph = capture(model, batch, precision=precision).graph
        given = graph.inputs, graph.losses, graph.outputs
        assert retrace(model, *given, precision=precision).graph.fingerprint == graph.fingerprint
    cast = model.to(torch.bfloat16)
    assert retrace(cast, *given, precision=Precision.BF16_PARAMS).graph.fingerprint == graph.fingerprint


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(CaptureError, match="precision: 'fp16' is not known; it can be fp32, bf16, bf16-params"):
        capture(*zoo.two_towers(), precision="fp16")

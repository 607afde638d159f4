"""Stages give the model's own results, however it is cut and however the batch is divided."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import Captured, capture
from plait.model.stages import build_stage

Check = Callable[[Captured, Mapping[str, Tensor], int, Sequence[int]], None]
WIDTH = 16


@pytest.fixture(scope="module")
def zoo_models() -> dict[str, tuple[Captured, dict[str, Tensor]]]:
    """Captured at 4 samples, with a batch of 7: ignored labels and padding of different lengths."""
    found = {}
    for name, options in (
        ("clip", {}),
        ("gpt2", {"dropout": 0.0}),
        ("t5", {}),
        ("llava", {}),
        ("two_towers", {}),
        ("siamese", {}),
    ):
        torch.manual_seed(4)
        make: Callable[..., zoo.Example] = getattr(zoo, name)
        model, example = make(**options)
        _, batch = make(samples=7, **options)
        if "labels" in batch:
            batch["labels"][0, 1:] = -100
            batch["labels"][5, 3:] = -100
        if "attention_mask" in batch:
            batch["attention_mask"][2, 5:] = 0
        found[name] = (capture(model, example), batch)
    return found


@pytest.mark.parametrize("sizes", [[7], [3, 4], [1, 2, 4]], ids=str)
@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("name", ["clip", "gpt2", "t5", "llava", "two_towers", "siamese"])
def test_loss_and_gradients_equal_the_models(
    zoo_models: dict[str, tuple[Captured, dict[str, Tensor]]],
    equal_to_model: Check,
    name: str,
    length: int,
    sizes: list[int],
) -> None:
    captured, batch = zoo_models[name]
    equal_to_model(captured, batch, length, sizes)


def test_outputs_in_evaluation_equal_the_models(pipeline: Callable[[Captured, int], Any]) -> None:
    model, batch = zoo.clip(dropout=0.1)
    captured = capture(model, batch, outputs=("image_embeds", "text_embeds"))
    model.eval()
    _, more = zoo.clip(samples=5)
    more["attention_mask"][1, 4:] = 0
    *_, last = pipeline(captured, 2).values(more, [5])
    with torch.no_grad():
        expected = model(**more)
    for name, value in captured.graph.outputs.items():
        torch.testing.assert_close(last[value].detach(), expected[name])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), length=st.integers(1, 4))
def test_any_micro_batches_and_cut_of_a_chain_with_a_long_skip(
    equal_to_model: Check, sizes: list[int], length: int
) -> None:
    model, batch = zoo.residual(samples=sum(sizes))
    captured = capture(model, batch)
    model.eval()  # without dropout
    equal_to_model(captured, batch, length, sizes)


class InPlace(nn.Module):
    """Writes in place between layers, through views too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.one(x)
        x += 1
        x = self.two(x.relu_())
        x[:, 0] = 0
        x[:, 1:3].mul_(2)
        x[..., 3] = y[:, 0]
        return functional.mse_loss(x, y)


class Masked(nn.Module):
    """A mean over the entries that a mask leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        error = self.two(self.one(x).tanh()).square().mean(-1)
        loss: Tensor = (error * mask).sum() / mask.sum()
        return loss


class Frozen(nn.Module):
    """An encoder under no_grad, a frozen layer, a learned token, a layer that sees no data."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in self.encoder:
                x = layer(x)
        token = self.norm(self.token.expand(len(x), -1, -1))
        loss: Tensor = self.head(torch.cat([token, self.frozen(x)[:, None]], 1)).square().mean()
        return loss


def mask(samples: int) -> Tensor:
    found = (torch.rand(samples, 5) > 0.4).float()
    found[0] = 0  # a micro-batch of this sample alone counts nothing
    found[1:, 0] = 1
    return found


MODELS: dict[str, tuple[type[nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "in place": (InPlace, lambda n: {"x": torch.randn(n, WIDTH), "y": torch.randn(n, WIDTH)}),
    "masked": (Masked, lambda n: {"x": torch.randn(n, 5, WIDTH), "mask": mask(n)}),
    "frozen": (Frozen, lambda n: {"x": torch.randn(n, WIDTH)}),
}


@pytest.mark.parametrize("sizes", [[7], [1, 2, 4]], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_other_models_equal_themselves_in_stages(equal_to_model: Check, name: str, sizes: list[int]) -> None:
    make, batch = MODELS[name]
    captured = capture(make(), batch(4))
    for length in (1, 3):
        equal_to_model(captured, batch(7), length, sizes)


def test_what_gets_no_gradient_is_told() -> None:
    graph = capture(Frozen(), {"x": torch.randn(4, WIDTH)}).graph
    assert {n for n, p in graph.parameters().items() if not p.trainable} == {
        "encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias", "frozen.weight", "frozen.bias",
    }  # fmt: skip
    before_head = [v for name in ("encoder.0", "encoder.1") for v in graph.by_name[name].writes]
    assert before_head
    assert not any(graph.values[v].gradient for v in before_head)


def test_a_stage_reads_and_writes_only_what_crosses_its_borders() -> None:
    captured = capture(*zoo.two_towers(), outputs=("prediction",))
    stage = build_stage(captured, ["left.0", "left.1", "left.2"])
    assert (stage.inputs, stage.reads) == (("left",), ())
    (written,) = stage.writes
    assert captured.graph.by_name["head"].reads[0] == written
    assert build_stage(captured, ["head"]).writes == ("prediction", "loss")


def test_parameters_are_the_models_own_under_canonical_names() -> None:
    model, batch = zoo.gpt2()
    captured = capture(model, batch)
    own = dict(model.named_parameters())
    tail = build_stage(captured, ["transformer.h.1"])
    found = dict(tail.named_parameters())
    assert "transformer.wte.weight" in found
    assert "lm_head.weight" not in found
    assert all(parameter is own[name] for name, parameter in found.items())
    whole = build_stage(captured, [x.name for x in captured.graph.layers])
    assert {n: id(p) for n, p in whole.named_parameters()} == {n: id(p) for n, p in own.items()}
    assert set(tail.state_dict()) <= set(model.state_dict())


def test_building_a_stage_leaves_modes_alone() -> None:
    model, batch = zoo.two_towers()
    frozen = model.get_submodule("left.0").eval()
    build_stage(capture(model, batch), ["left.0"])
    assert not frozen.training


def test_dropout_between_layers_follows_the_mode() -> None:
    model, batch = zoo.residual(samples=64)
    captured = capture(model, batch)
    stage = build_stage(captured, [x.name for x in captured.graph.layers])
    first, second = stage(batch), stage(batch)
    assert not torch.equal(first["loss"], second["loss"])
    stage.eval()
    first, second = stage(batch), stage(batch)
    assert torch.equal(first["loss"], second["loss"])


def test_the_users_own_modules_run_with_their_hooks() -> None:
    model, batch = zoo.clip()
    captured = capture(model, batch)
    calls: list[str] = []
    block = model.get_submodule("vision_model.encoder.layers.1")
    block.register_forward_hook(lambda *_: calls.append("seen"))
    build_stage(captured, ["vision_model.encoder.layers.1"])({"vision_model.encoder.layers.0": torch.randn(2, 17, 64)})
    assert calls == ["seen"]


def test_layers_with_another_between_them_are_no_stage() -> None:
    captured = capture(*zoo.clip())
    with pytest.raises(CaptureError, match=r"vision_model\.encoder\.layers\.0 needs some of them"):
        build_stage(captured, ["vision_model.embeddings", "vision_model.encoder.layers.1"])


def test_unknown_layers_and_missing_values_are_named() -> None:
    captured = capture(*zoo.two_towers())
    with pytest.raises(CaptureError, match=r"no layer 'left\.9'; the layers are left\.0"):
        build_stage(captured, ["left.9"])
    with pytest.raises(CaptureError, match="head: the value 'target' is not given"):
        build_stage(captured, ["head"])({})

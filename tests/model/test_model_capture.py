"""Capture draws the graph that an expert would, finds scopes by trying and refuses what it can't do right."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.errors import CaptureError
from plait.model import zoo
from plait.model.capture import Captured, capture, retrace
from plait.model.graph import BranchGraph, Scope

WIDTH = 8


def layers_by_branch(graph: BranchGraph) -> dict[str, list[str]]:
    return {name: [layer.name for layer in layers] for name, layers in graph.branches.items()}


@pytest.fixture(scope="module")
def clip() -> Captured:
    model, batch = zoo.clip()
    return capture(model, batch, outputs=("image_embeds", "text_embeds"))


@pytest.fixture(scope="module")
def gpt2() -> Captured:
    return capture(*zoo.gpt2())


def test_clip_has_two_towers_and_a_loss_over_the_batch(clip: Captured) -> None:
    assert layers_by_branch(clip.graph) == {
        "vision_model": ["vision_model.embeddings", "vision_model.encoder.layers.0", "vision_model.encoder.layers.1"],
        "text_model": ["text_model.embeddings", "text_model.encoder.layers.0", "text_model.encoder.layers.1"],
        "loss": ["loss"],
    }
    scopes = {layer.name: layer.scope for layer in clip.graph.layers}
    assert {name for name, scope in scopes.items() if scope is Scope.BATCH} == {"loss"}
    assert [(t.value, t.scope, t.coefficient) for t in clip.graph.losses] == [("loss", Scope.BATCH, 1.0)]


def test_clip_towers_meet_in_one_embedding_per_sample(clip: Captured) -> None:
    assert {(value, target) for value, _, target in clip.graph.interactions} == {
        ("image_embeds", "loss"),
        ("text_embeds", "loss"),
    }
    for name in clip.graph.outputs.values():
        spec = clip.graph.values[name]
        assert (spec.shape, spec.batch_dim, spec.gradient) == ((1, 64), 0, True)


def test_every_parameter_of_clip_belongs_to_one_layer_under_its_own_name(clip: Captured) -> None:
    names = [p.name for layer in clip.graph.layers for p in layer.parameters]
    assert sorted(names) == sorted(dict(clip.model.named_parameters()))
    assert "logit_scale" in {p.name for p in clip.graph.by_name["loss"].parameters}


def test_equal_blocks_share_a_signature_and_different_ones_do_not() -> None:
    graph = capture(*zoo.clip(layers=(3, 2))).graph
    signatures = [graph.by_name[f"vision_model.encoder.layers.{i}"].signature for i in range(3)]
    assert signatures[0] == signatures[1] != signatures[2]  # the last one holds the projection too
    assert graph.by_name["text_model.encoder.layers.0"].signature not in signatures


def test_flops_are_those_of_the_matrix_products(clip: Captured) -> None:
    tokens, width = 17, 64
    products = tokens * (4 * width * width + 2 * width * 2 * width) + 2 * tokens * tokens * width
    assert clip.graph.by_name["vision_model.encoder.layers.0"].flops == 2 * products


def test_a_token_mean_is_weighted_by_its_labels(gpt2: Captured) -> None:
    (term,) = gpt2.graph.losses
    assert term.scope is Scope.WEIGHTED
    labels = torch.full((3, 8), -100)
    labels[0, :4] = 1  # the first label is nobody's next token: three count
    labels[2, 7] = 1
    assert float(gpt2.count(term, {"input_ids": torch.zeros(3, 8, dtype=torch.long), "labels": labels})) == 4


def test_tied_embeddings_have_one_name_in_both_layers(gpt2: Captured) -> None:
    holders = [x.name for x in gpt2.graph.layers if "transformer.wte.weight" in {p.name for p in x.parameters}]
    assert holders == ["transformer.wte", "transformer.h.1"]
    assert "lm_head.weight" not in gpt2.graph.parameters()


def test_dropout_is_seen(gpt2: Captured, clip: Captured) -> None:
    assert all(layer.random for layer in gpt2.graph.layers)
    assert not any(layer.random for layer in clip.graph.layers)


def test_a_decoder_stays_one_branch_though_every_layer_reads_the_encoder() -> None:
    graph = capture(*zoo.t5()).graph
    assert list(graph.branches) == ["encoder", "decoder"]
    assert {target for _, _, target in graph.interactions} == {"decoder.block.0", "decoder.block.1"}
    assert not any(layer.scope is Scope.BATCH for layer in graph.layers)


def test_an_image_among_a_texts_tokens_is_an_interaction_of_two_branches() -> None:
    graph = capture(*zoo.llava()).graph
    assert list(graph.branches) == ["model.vision_tower", "model.language_model"]
    assert graph.interactions == (
        ("model.multi_modal_projector", "model.vision_tower.encoder.layers.1", "model.language_model.embed_tokens"),
    )


def test_a_mean_over_samples_has_microbatch_scope() -> None:
    graph = capture(*zoo.two_towers()).graph
    assert graph.losses[0].scope is Scope.MICROBATCH
    assert list(graph.branches) == ["left", "right", "head"]


def test_a_shared_tower_becomes_two_branches_with_the_same_parameters() -> None:
    graph = capture(*zoo.siamese()).graph
    first, second, loss = graph.branches.values()
    assert [x.parameters for x in first] == [x.parameters for x in second]
    assert [x.modules for x in first] == [x.modules for x in second]
    assert loss[0].scope is Scope.BATCH


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.classes = nn.Linear(WIDTH, WIDTH)
        self.values = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, label: Tensor, target: Tensor) -> dict[str, Tensor]:
        x = self.trunk(x)
        classes = functional.cross_entropy(self.classes(x), label)
        return {"loss": classes - functional.mse_loss(self.values(x), target) * 0.25}


def rows(samples: int = 4) -> Tensor:
    return torch.randn(samples, WIDTH)


def labels(samples: int = 4) -> Tensor:
    return torch.randint(0, WIDTH, (samples,))


def test_terms_of_different_scopes_are_told_apart_with_their_coefficients() -> None:
    graph = capture(Heads(), {"x": rows(), "label": labels(), "target": rows()}).graph
    found = {t.value: (t.scope, t.coefficient) for t in graph.losses}
    assert found == {
        "loss.cross_entropy_loss": (Scope.WEIGHTED, 1.0),
        "loss.mse_loss": (Scope.MICROBATCH, -0.25),
    }
    assert list(graph.branches) == ["trunk", "classes", "values"]


class Mixing(nn.Module):
    """Mixes samples in mid-model, where no shape shows it."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        # Without a bias, whose gradient would be rounding noise around zero where the mean is taken off.
        self.first, self.last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.mix = mix

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.last(self.mix(self.first(x))), y)


MIXERS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax over samples": lambda x: x.softmax(0),
    "centred": lambda x: x - x.mean(0),
    "neighbour": lambda x: x.roll(1, 0),
    "attention over samples": lambda x: (x @ x.T).softmax(-1) @ x,
    "hardest negative": lambda x: x[(x @ x.T - 1e4 * torch.eye(len(x))).argmax(-1)],
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_mixing_in_mid_model_gets_a_layer_of_batch_scope(
    mixer: str, equal_to_model: Callable[[Captured, Mapping[str, Tensor], int, list[int]], None]
) -> None:
    captured = capture(Mixing(MIXERS[mixer]), {"x": rows(), "y": rows()})
    scopes = [layer.scope for layer in captured.graph.layers]
    assert scopes == [Scope.MICROBATCH, Scope.BATCH, Scope.MICROBATCH]
    assert captured.graph.losses[0].scope is Scope.MICROBATCH
    equal_to_model(captured, {"x": rows(7), "y": rows(7)}, 1, [3, 4])


def test_a_norm_over_the_batch_is_a_layer_of_batch_scope_and_keeps_its_statistics() -> None:
    model = Mixing(nn.BatchNorm1d(WIDTH))
    before = {n: t.clone() for n, t in model.state_dict().items()}
    graph = capture(model, {"x": rows(), "y": rows()}).graph
    assert graph.by_name["mix"].scope is Scope.BATCH
    assert graph.by_name["mix"].buffers == ("mix.running_mean", "mix.running_var", "mix.num_batches_tracked")
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_norm_over_the_batch_shows_beside_dropout_in_the_same_layer() -> None:
    block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5))
    graph = capture(Mixing(block), {"x": rows(), "y": rows()}).graph
    assert graph.by_name["mix"].scope is Scope.BATCH


def test_noise_that_evaluation_does_not_switch_off_is_refused() -> None:
    class Noise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.scale * torch.randn_like(x)

    with pytest.raises(CaptureError, match="give another loss than the model"):
        capture(Mixing(Noise()), {"x": rows(), "y": rows()})


def test_a_norm_may_be_told_to_work_on_each_micro_batch() -> None:
    model = Mixing(nn.BatchNorm1d(WIDTH))
    graph = capture(model, {"x": rows(), "y": rows()}, scopes={"mix": "microbatch"}).graph
    assert all(layer.scope is Scope.MICROBATCH for layer in graph.layers)


class Pairwise(nn.Module):
    """A loss over all pairs that ends as a mean over samples (as SigLIP's)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        scores = self.one(x) @ self.two(y).T * (2 * torch.eye(len(x)) - 1)
        return -functional.logsigmoid(scores).sum(-1).mean()


def test_a_loss_over_pairs_is_one_layer_of_batch_scope(
    equal_to_model: Callable[[Captured, Mapping[str, Tensor], int, list[int]], None],
) -> None:
    captured = capture(Pairwise(), {"x": rows(), "y": rows()})
    assert [(x.name, x.scope) for x in captured.graph.layers][2:] == [("loss", Scope.BATCH)]
    assert captured.graph.losses[0].scope is Scope.BATCH
    equal_to_model(captured, {"x": rows(7), "y": rows(7)}, 2, [3, 4])
    again = retrace(captured.model, captured.graph.inputs, captured.graph.losses, mixing=captured.graph.mixing)
    assert again.graph == captured.graph


class Looping(nn.Module):
    """Takes the batch apart and puts it together again, sample by sample."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        parts = list(torch.split(x, 1, 0)) if self.dim else list(x.unbind(0))
        loss: Tensor = self.two(torch.cat(parts, 0).reshape(len(x), WIDTH)).square().mean()
        return loss


@pytest.mark.parametrize("dim", [0, 1])
def test_a_loop_over_samples_is_seen_through(dim: int) -> None:
    graph = capture(Looping(dim), {"x": rows()}).graph
    assert [x.scope for x in graph.layers] == [Scope.MICROBATCH] * 2


class Caching(nn.Module):
    """Keeps a tensor between calls, as masks and rotations are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(WIDTH) * 1.0
        loss: Tensor = (self.two(self.one(x)) * self.kept).mean()
        return loss


def test_nothing_fake_stays_in_the_model() -> None:
    model = Caching()
    capture(model, {"x": rows()})
    assert model.kept is None


def test_layers_code_starts_in_the_models_mode() -> None:
    model, batch = zoo.residual()
    assert all(code.training for code in capture(model, batch).code.values())
    assert not any(code.training for code in capture(model.eval(), batch).code.values())


def test_a_scope_can_be_given() -> None:
    model, batch = zoo.two_towers()
    graph = capture(model, batch, scopes={"loss": "batch"}).graph
    assert graph.losses[0].scope is Scope.BATCH
    assert [x.name for x in graph.layers if x.scope is Scope.BATCH] == ["loss"]


def test_a_loss_of_the_users_own_may_use_inputs_that_the_model_does_not_take() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))

    def loss(result: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return functional.cross_entropy(result, batch["label"])

    graph = capture(model, {"input": rows(), "label": labels()}, loss=loss).graph
    assert graph.losses[0].scope is Scope.WEIGHTED
    assert graph.by_name["1"].inputs == ("label",)


def test_outputs_without_a_loss() -> None:
    model, batch = zoo.clip()
    del batch["attention_mask"]

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clip = model

        def forward(self, **batch: Tensor) -> Any:
            return {"scores": self.clip(**batch).text_embeds}

    graph = capture(Towers(), batch, outputs=("scores",)).graph
    assert (graph.losses, graph.outputs) == ((), {"scores": "scores"})


def test_the_model_is_left_as_it_was() -> None:
    model, batch = zoo.gpt2()
    first, second = model.get_submodule("transformer.h.0"), model.get_submodule("transformer.h.1")
    first.eval()
    handle = second.register_forward_hook(lambda *_: None)
    parameters = {n: (id(p), p.detach().clone()) for n, p in model.named_parameters()}
    flags = [m.training for m in model.modules()]
    state = torch.get_rng_state()
    capture(model, batch)
    assert torch.equal(state, torch.get_rng_state())
    assert [m.training for m in model.modules()] == flags
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert len(second._forward_hooks) == 1
    for name, parameter in model.named_parameters():
        assert id(parameter) == parameters[name][0]
        assert torch.equal(parameter, parameters[name][1])
        assert parameter.grad is None
    handle.remove()


@pytest.mark.parametrize("name", ["clip", "gpt2", "t5", "llava", "two_towers", "residual", "siamese"])
def test_tracing_again_without_weights_and_for_another_batch_gives_the_same_graph(name: str) -> None:
    make: Callable[..., zoo.Example] = getattr(zoo, name)
    model, batch = make(samples=6)
    graph = capture(model, batch).graph
    with torch.device("meta"):
        bare, _ = make()
    again = retrace(bare.eval(), graph.inputs, graph.losses, graph.outputs, mixing=graph.mixing).graph
    assert again == graph
    assert again.fingerprint == capture(*make(samples=3)).graph.fingerprint


def test_the_graph_survives_its_text_form(clip: Captured) -> None:
    assert BranchGraph.parse(clip.graph.dump()) == clip.graph


@pytest.mark.slow
def test_another_process_with_other_hashes_finds_the_same_fingerprint(clip: Captured) -> None:
    code = (
        "from plait.model import zoo; from plait.model.capture import capture; "
        "print(capture(*zoo.clip(samples=3), outputs=('image_embeds', 'text_embeds')).graph.fingerprint)"
    )
    source = str(Path(zoo.__file__).parents[2])
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == clip.graph.fingerprint


def test_another_model_has_another_fingerprint(clip: Captured) -> None:
    assert capture(*zoo.clip(width=32)).graph.fingerprint != clip.graph.fingerprint


class Deciding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return (x * 2 if x.sum() > 0 else x).mean()


class BySize(Deciding):
    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return (x * 2 if len(x) > 4 else x).mean()


class Counting(Deciding):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = self.inner(x)
        return (x * self.calls).mean()


class Vector(Deciding):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": self.inner(x).mean(-1)}


REFUSED: dict[str, tuple[nn.Module, dict[str, Any], str]] = {
    "a branch on values": (Deciding(), {"x": rows()}, r"Deciding \(test_model_capture\.py:\d+\): cannot be traced"),
    "a branch on the batch size": (BySize(), {"x": rows()}, "BySize: .*another loss than the model for 5 samples"),
    "state between layers": (Counting(), {"x": rows()}, "changes the buffer calls in place"),
    "a loss for each sample": (Vector(), {"x": rows()}, r"the loss has shape \(4,\)"),
    "no loss": (nn.Linear(WIDTH, WIDTH), {"input": rows()}, "holds no loss"),
    "no tensors": (Deciding(), {}, "no tensor with samples"),
    "no samples": (Deciding(), {"x": rows(0)}, "no samples"),
    "a switch": (Deciding(), {"x": rows(), "verbose": True}, "'verbose' is a bool"),
    "unequal inputs": (Deciding(), {"x": rows(), "y": rows(3)}, r"different numbers of samples: \{'x': 4, 'y': 3\}"),
    "an unknown input": (Deciding(), {"x": rows(), "y": rows()}, "'y' is not an argument of Deciding.forward"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_reason(case: str) -> None:
    model, batch, message = REFUSED[case]
    with pytest.raises(CaptureError, match=message):
        capture(model, batch)
    assert all("forward" not in m.__dict__ for m in model.modules())
    assert not any(isinstance(p, torch._subclasses.FakeTensor) for p in model.parameters())


def test_an_unknown_output_is_refused_with_the_known_ones() -> None:
    model, batch = zoo.two_towers()
    with pytest.raises(CaptureError, match=r"no tensor 'logits'; it has \['loss', 'prediction'\]"):
        capture(model, batch, outputs=("logits",))


def test_an_output_over_pairs_of_samples_is_refused_by_name() -> None:
    model, batch = zoo.clip()
    with pytest.raises(CaptureError, match=r"logits_per_image .*one batch dimension only"):
        capture(model, batch, outputs=("logits_per_image",))


def test_a_graph_of_another_model_is_refused(clip: Captured) -> None:
    model, _ = zoo.two_towers()
    with pytest.raises(CaptureError, match="not an argument of TwoTowers"):
        retrace(model, clip.graph.inputs, clip.graph.losses)

"""Language models, encoder-decoders and multi-task models get the graph that an expert would draw."""

import pytest
import torch

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope


def layers_by_branch(graph: BranchGraph) -> dict[str, list[str]]:
    return {name: [layer.name for layer in layers] for name, layers in graph.branches.items()}


def edges(graph: BranchGraph) -> set[tuple[str, str]]:
    """The interactions as (layer that writes, layer that reads)."""
    return {(source, target) for _, source, target in graph.interactions}


def scopes(graph: BranchGraph) -> list[Scope]:
    return [term.scope for term in graph.losses]


def test_llama_is_one_branch_of_its_blocks() -> None:
    graph = capture(*zoo.llama(layers=3)).graph
    assert layers_by_branch(graph) == {
        "model": ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2"]
    }
    assert graph.layers[-1].modules == ("model.layers.2", "model.norm", "lm_head")
    assert scopes(graph) == [Scope.WEIGHTED]


def test_bert_is_one_branch_with_a_loss_for_words_and_one_for_the_next_sentence() -> None:
    graph = capture(*zoo.bert()).graph
    assert layers_by_branch(graph) == {
        "bert": ["bert.embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "cls"]
    }
    assert scopes(graph) == [Scope.WEIGHTED] * 2
    assert len({term.count for term in graph.losses}) == 2  # each a mean over its own labels
    tied = "bert.embeddings.word_embeddings.weight"
    assert [x.name for x in graph.layers if tied in {p.name for p in x.parameters}] == ["bert.embeddings", "cls"]


def test_vit_is_one_branch_from_patches_to_classes() -> None:
    graph = capture(*zoo.vit()).graph
    assert layers_by_branch(graph) == {"vit": ["vit.embeddings", "vit.layers.0", "vit.layers.1"]}
    assert graph.layers[-1].modules == ("vit.layers.1", "vit.layernorm", "classifier")
    assert graph.layers[-1].inputs == ("labels",)  # the last stage reads its labels by itself


@pytest.fixture(scope="module")
def whisper() -> BranchGraph:
    return capture(*zoo.whisper(layers=(2, 3))).graph


def test_whispers_encoder_is_read_by_every_decoder_layer(whisper: BranchGraph) -> None:
    assert layers_by_branch(whisper) == {
        "model.encoder": [
            "model.encoder.conv1",
            "model.encoder.conv2",
            "model.encoder.layers.0",
            "model.encoder.layers.1",
        ],
        "model.decoder": ["model.decoder.embed_tokens", *(f"model.decoder.layers.{i}" for i in range(3))],
    }
    assert edges(whisper) == {("model.encoder.layers.1", f"model.decoder.layers.{i}") for i in range(3)}
    assert {value for value, _, _ in whisper.interactions} == {"model.encoder.layer_norm"}
    assert scopes(whisper) == [Scope.WEIGHTED]


def test_whispers_fixed_positions_get_no_gradient_and_its_head_is_its_embedding(whisper: BranchGraph) -> None:
    parameters = whisper.parameters()
    assert not parameters["model.encoder.embed_positions.weight"].trainable
    assert parameters["model.decoder.embed_positions.weight"].trainable
    assert "proj_out.weight" not in parameters
    tied = [x.name for x in whisper.layers if "model.decoder.embed_tokens.weight" in {p.name for p in x.parameters}]
    assert tied == ["model.decoder.embed_tokens", "model.decoder.layers.2"]


@pytest.mark.parametrize("name", ["llama", "whisper"])
def test_caches_are_switched_off_while_a_model_is_captured(name: str) -> None:
    model, batch = getattr(zoo, name)()
    model.config.use_cache = True
    assert capture(model, batch).graph.losses
    assert model.config.use_cache
    with torch.no_grad():
        assert model(**batch).past_key_values is not None


def test_mllamas_image_goes_to_the_layers_that_attend_to_it_and_to_no_other() -> None:
    graph = capture(*zoo.mllama(layers=5)).graph
    assert list(graph.branches) == ["model.vision_model", "model.language_model"]
    assert [x.name for x in graph.branches["model.language_model"]] == [
        "model.language_model.embed_tokens",
        *(f"model.language_model.layers.{i}" for i in range(5)),
    ]
    image = "model.vision_model.global_transformer"
    assert edges(graph) == {(image, f"model.language_model.layers.{i}") for i in (1, 3)}
    assert "cross_attention_mask" not in graph.by_name["model.language_model.layers.2"].inputs


def test_idefics_gated_layers_stand_among_those_of_the_text() -> None:
    graph = capture(*zoo.idefics()).graph
    text, image = graph.branches.values()
    assert [x.name.removeprefix("model.") for x in image] == [
        "vision_model.embeddings", "vision_model.encoder.layers.0", "vision_model.encoder.layers.1",
        *(f"perceiver_resampler.blocks.{i}.{part}" for i in range(2) for part in range(2)),
    ]  # fmt: skip
    assert [x.name.removeprefix("model.") for x in text] == [
        "embed_tokens", "gated_cross_attn_layers.0", "layers.0", "layers.1", "gated_cross_attn_layers.1", "layers.2",
        "layers.3",
    ]  # fmt: skip
    assert {target for _, target in edges(graph)} == {f"model.gated_cross_attn_layers.{i}" for i in range(2)}
    assert len({value for value, _, _ in graph.interactions}) == 1  # latents of the resampler, for all images at once


def test_of_idefics_only_what_joins_the_frozen_towers_is_trained() -> None:
    graph = capture(*zoo.idefics()).graph
    trained = {name.split(".")[1] for name, p in graph.parameters().items() if p.trainable}
    assert trained == {"perceiver_resampler", "gated_cross_attn_layers"}


def test_a_recommenders_tables_begin_its_towers_which_meet_in_a_loss_over_the_batch() -> None:
    graph = capture(*zoo.recommender()).graph
    assert {name: [x.modules for x in layers] for name, layers in graph.branches.items()} == {
        "user_tower": [("user", "history"), *((f"user_tower.{i}",) for i in range(3))],
        "item": [("item", "category"), *((f"item_tower.{i}",) for i in range(3))],
        "loss": [()],
    }
    assert edges(graph) == {("user_tower.2", "loss"), ("item_tower.2", "loss")}
    assert scopes(graph) == [Scope.BATCH]


def test_tasks_trained_together_are_branches_that_share_their_trunk() -> None:
    graph = capture(*zoo.multi_task()).graph
    trunk = [f"trunk.{i}" for i in range(2)]
    modules = [[m for x in layers for m in x.modules] for layers in graph.branches.values()]
    assert modules == [
        ["patches", *trunk, "classes"],
        ["words", *trunk, "next_word"],
        ["patches", *trunk],
        ["words", *trunk],
        [],
    ]
    assert {target for _, target in edges(graph)} == {"loss"}
    terms = [(t.scope, t.coefficient) for t in graph.losses]
    assert terms == [(Scope.WEIGHTED, 1.0), (Scope.WEIGHTED, 0.5), (Scope.BATCH, 1.0)]


@pytest.mark.parametrize(("task", "branches"), [("classify", 1), ("caption", 1), ("match", 3)])
def test_a_task_alone_has_only_its_own_branches(task: str, branches: int) -> None:
    graph = capture(*zoo.multi_task(tasks=(task,))).graph
    assert len(graph.branches) == branches
    used = {m for x in graph.layers for m in x.modules}
    assert ("classes" in used, "next_word" in used) == (task == "classify", task == "caption")

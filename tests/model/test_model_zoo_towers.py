"""Dual towers and fusion models of the zoo, given as they are: the graph is the one that an expert would draw."""

import pytest

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope


def branches(graph: BranchGraph) -> dict[str, list[str]]:
    """Branch → its layers' names, the branch's own name left out."""
    return {b: [x.name.removeprefix(f"{b}.") for x in layers] for b, layers in graph.branches.items()}


def meetings(graph: BranchGraph) -> set[tuple[str, str]]:
    """(layer, layer) for each interaction."""
    return {(source, target) for _, source, target in graph.interactions}


def of_batch(graph: BranchGraph) -> set[str]:
    """Layers of batch scope."""
    return {layer.name for layer in graph.layers if layer.scope is Scope.BATCH}


VISION = ["embeddings", "encoder.layers.0", "encoder.layers.1"]
TOWERS = {
    "siglip": {
        "vision_model": [*VISION, "head"],
        "text_model": ["embeddings", "encoder.layers.0", "encoder.layers.1"],
        "loss": ["loss"],
    },
    "chinese_clip": {
        "vision_model": VISION,
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    },
    "blip": {
        "vision_model": VISION,
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    },
    "dual_encoder": {
        "vision_model": ["embeddings", "layers.0", "layers.1"],
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    },
}


@pytest.mark.parametrize("name", TOWERS)
def test_two_towers_meet_only_in_a_loss_over_the_batch(name: str) -> None:
    graph = capture(*getattr(zoo, name)()).graph
    assert branches(graph) == TOWERS[name]
    last = {layers[-1].name for branch, layers in graph.branches.items() if branch != "loss"}
    assert meetings(graph) == {(layer, "loss") for layer in last}
    assert of_batch(graph) == {"loss"}
    assert [(t.scope, t.coefficient) for t in graph.losses] == [(Scope.BATCH, 1.0)]
    for value, _, _ in graph.interactions:
        assert graph.values[value].shape == (1, 32)  # one embedding per sample, and no masks beside it


def test_cross_modal_layers_read_several_depths_of_both_towers() -> None:
    graph = capture(*zoo.bridge_tower()).graph
    text, vision = "bridgetower.text_model", "bridgetower.vision_model.visual"
    crossing = ["transform", "layers.0", "link_tower.0", "layers.1"]
    assert {b: [x.name for x in layers] for b, layers in graph.branches.items()} == {
        text: [f"{text}.{x}" for x in ("embeddings", "encoder.layer.0", "encoder.layer.1", "encoder.layer.2")],
        vision: [f"{vision}.embeddings", *(f"{vision}.transformer.resblocks.{i}" for i in range(3))],
        "bridgetower.cross_modal_image": [f"bridgetower.cross_modal_image_{x}" for x in crossing],
        "bridgetower.cross_modal_text": [f"bridgetower.cross_modal_text_{x}" for x in crossing],
        "itm_score": ["itm_score"],
    }
    read = {t: {s for s, other in meetings(graph) if other == t} for _, t in meetings(graph)}
    assert read == {
        "bridgetower.cross_modal_image_transform": {f"{vision}.transformer.resblocks.1"},
        "bridgetower.cross_modal_text_transform": {f"{text}.encoder.layer.1"},
        "bridgetower.cross_modal_image_layers.0": {"bridgetower.cross_modal_text_transform"},
        "bridgetower.cross_modal_text_layers.0": {"bridgetower.cross_modal_image_transform"},
        "bridgetower.cross_modal_image_link_tower.0": {f"{vision}.transformer.resblocks.2"},
        "bridgetower.cross_modal_text_link_tower.0": {f"{text}.encoder.layer.2"},
        "bridgetower.cross_modal_image_layers.1": {"bridgetower.cross_modal_text_link_tower.0"},
        "bridgetower.cross_modal_text_layers.1": {"bridgetower.cross_modal_image_link_tower.0"},
        "itm_score": {"bridgetower.cross_modal_image_layers.1", "bridgetower.cross_modal_text_layers.1"},
    }
    assert [(t.value, t.scope) for t in graph.losses] == [("loss", Scope.WEIGHTED)]


def test_three_contrastive_losses_wait_only_for_what_each_compares() -> None:
    graph = capture(*zoo.bridge_tower_contrastive()).graph
    assert [(t.scope, round(t.coefficient, 3)) for t in graph.losses] == [(Scope.BATCH, 0.333)] * 3
    assert of_batch(graph) == {"loss", "loss#2", "loss#3"}
    heads = {"itc_text_head", "bridgetower.cross_modal_image_transform#3", "itc_cross_modal_head"}
    assert {s for s, target in meetings(graph) if target in of_batch(graph)} == heads


def test_every_text_layer_of_blip_attends_to_the_image() -> None:
    graph = capture(*zoo.blip_captioning()).graph
    assert branches(graph) == {
        "vision_model": VISION,
        "text_decoder.bert": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
    }
    last = "vision_model.encoder.layers.1"
    assert meetings(graph) == {(last, f"text_decoder.bert.encoder.layer.{i}") for i in range(2)}
    assert [(t.value, t.scope) for t in graph.losses] == [("loss", Scope.WEIGHTED)]


def test_the_norm_before_an_audio_tower_waits_for_the_whole_batch() -> None:
    graph = capture(*zoo.clap()).graph
    norm, tower = "audio_model.audio_encoder.batch_norm", "audio_model.audio_encoder.layers"
    assert of_batch(graph) == {norm, "loss"}
    assert branches(graph) == {
        "audio_model.audio_encoder": ["batch_norm"],
        tower: ["0", "1"],
        "text_model": ["embeddings", "encoder.layer.0", "encoder.layer.1"],
        "loss": ["loss"],
    }
    assert meetings(graph) == {(norm, f"{tower}.0"), (f"{tower}.1", "loss"), ("text_model.encoder.layer.1", "loss")}


def test_albefs_fusion_runs_once_for_each_loss_and_hard_negatives_wait_for_the_batch() -> None:
    graph = capture(*zoo.albef()).graph
    blocks = ["blocks.0", "blocks.1"]
    text = [f"text_encoder.{x}" for x in ("embed", *blocks)]
    assert [[x.name for x in layers] for layers in graph.branches.values()] == [
        [*(f"image_encoder.{x}" for x in ("embed", *blocks)), "image_projection"],
        [*text, "text_projection"],
        ["loss"],
        ["fusion.0", "fusion.1"],
        ["fusion.0#2", "fusion.1#2"],
        [f"{x}#2" for x in text],
        ["fusion.0#3", "fusion.1#3"],
        ["loss#2"],
    ]
    assert of_batch(graph) == {"loss"}
    negatives = {(value, target) for value, source, target in graph.interactions if source == "loss"}
    assert negatives == {("index", "fusion.0#2"), ("index", "fusion.1#2")}
    assert graph.values["index"].shape == (1, 4, 32)  # patches of another sample's image
    image = "image_encoder.blocks.1"
    assert {t for s, t in meetings(graph) if s == image} == {"loss", "fusion.0", "fusion.1", "fusion.0#3", "fusion.1#3"}
    assert {s for s, t in meetings(graph) if t == "loss#2"} == {"fusion.1", "fusion.1#2"}
    assert [(t.scope, t.coefficient) for t in graph.losses] == [
        (Scope.BATCH, 0.5), (Scope.BATCH, 0.5), (Scope.MICROBATCH, -0.5), (Scope.WEIGHTED, 1.0),
    ]  # fmt: skip


def test_flavas_fusion_belongs_to_neither_tower() -> None:
    graph = capture(*zoo.flava()).graph
    towers = {
        kind: [f"{kind}_model.embeddings", *(f"{kind}_model.encoder.layer.{i}" for i in range(2)), f"{kind}_projection"]
        for kind in ("image", "text")
    }
    fusion = [f"multimodal_model.encoder.layer.{i}" for i in range(2)]
    found = [[x.name.removeprefix("flava.") for x in layers] for layers in graph.branches.values()]
    assert sorted(found) == sorted([towers["image"], towers["text"], fusion, ["loss"]])
    assert meetings(graph) == {
        ("flava.image_model.encoder.layer.1", "flava.multimodal_model.encoder.layer.0"),
        ("flava.text_model.encoder.layer.1", "flava.multimodal_model.encoder.layer.0"),
        ("flava.image_projection", "loss"),
        ("flava.text_projection", "loss"),
    }
    assert of_batch(graph) == {"loss"}
    assert sorted(t.scope for t in graph.losses) == [Scope.BATCH, Scope.BATCH, Scope.WEIGHTED]

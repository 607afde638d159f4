"""The picture of a graph: hundreds of layers on a page, every branch and interaction there, all of it on the sheet."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from plait.errors import FileError
from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph, Layer, Loss, Parameter, Scope, TensorSpec
from plait.model.picture.fold import fold
from plait.model.picture.place import WIDTH, Placed, place
from plait.model.picture.svg import save_picture, svg

SVG = "{http://www.w3.org/2000/svg}"


def layer(name: str, reads: Sequence[str] = (), kind: str = "", scope: Scope = Scope.MICROBATCH) -> Layer:
    weight = Parameter(name=f"{name}.weight", shape=(4, 4), dtype="float32")
    branch = name.partition(".")[0]
    return Layer(
        name=name, branch=branch, reads=tuple(reads), writes=(name,), signature=kind or name, flops=32.0,
        parameters=(weight,), scope=scope if scope is Scope.BATCH else Scope.MICROBATCH,
    )  # fmt: skip


def graph_of(layers: Sequence[Layer], scope: Scope = Scope.MICROBATCH) -> BranchGraph:
    values = {x.name: TensorSpec(shape=(1, 4), dtype="float32") for x in layers}
    loss = Loss(value=layers[-1].name, scope=scope)
    return BranchGraph(model="Sketch", inputs={}, values=values, layers=tuple(layers), losses=(loss,))


def chain(branch: str, count: int, start: Sequence[str] = ()) -> list[Layer]:
    made = [layer(f"{branch}.0", start, branch)]
    for index in range(1, count):
        made.append(layer(f"{branch}.{index}", [made[-1].name], branch))
    return made


def big() -> BranchGraph:
    """Three branches of 100 layers; each fourth one of text reads the last of image; a loss over all."""
    image, audio, text = (chain(name, 100) for name in ("image", "audio", "text"))
    text = [
        x.model_copy(update={"reads": (*x.reads, "image.99"), "signature": "cross"}) if i % 4 == 3 else x
        for i, x in enumerate(text)
    ]
    ends = [tower[-1].name for tower in (image, audio, text)]
    return graph_of([*image, *audio, *text, layer("loss", ends, scope=Scope.BATCH)], Scope.BATCH)


def parsed(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)  # noqa: S314 - our own


def texts(picture: str) -> list[str]:
    return [node.text or "" for node in parsed(picture).iter(f"{SVG}text")]


def test_three_hundred_layers_fold_into_a_dozen_boxes() -> None:
    runs = fold(big())
    boxes = [box for found in runs.values() for run in found for box in run.boxes]
    assert len(boxes) <= 12
    assert sorted(x.name for box in boxes for x in box.layers) == sorted(x.name for x in big().layers)
    pattern = next(run for run in runs["text"] if run.times > 1)
    assert [len(box.layers) // pattern.times for box in pattern.boxes] == [3, 1]


def test_layers_that_differ_in_whom_they_feed_are_not_folded() -> None:
    layers = chain("tower", 8)
    layers += [layer("head", ["tower.4", "tower.7"])]
    boxes = [[x.name for x in box.layers] for run in fold(graph_of(layers))["tower"] for box in run.boxes]
    assert boxes == [[f"tower.{i}" for i in range(4)], ["tower.4"], ["tower.5"], ["tower.6"], ["tower.7"]]


def test_a_picture_names_each_branch_and_each_interaction_with_bytes_and_scope() -> None:
    found = texts(svg(capture(*zoo.clip()).graph))
    assert {"vision_model · 3 layers", "text_model · 3 layers", "loss"} <= set(found)
    assert found.count("256 B/sample · batch") == 2
    assert "loss · scope batch" in found


def test_arrows_lead_downwards_and_no_box_covers_another() -> None:
    made = place(big())
    assert {(e.source.box.branch, e.target.box.branch) for e in made.edges if e.crosses} == {
        ("image", "text"), ("image", "loss"), ("audio", "loss"), ("text", "loss"),
    }  # fmt: skip
    assert all(e.source.bottom < e.target.y for e in made.edges)
    assert not [(a.box, b.box) for i, a in enumerate(made.boxes) for b in made.boxes[:i] if cover(a, b)]


def cover(one: Placed, two: Placed) -> bool:
    return abs(one.x - two.x) < WIDTH and one.y < two.bottom and two.y < one.bottom


def test_towers_that_read_each_other_at_every_layer_can_be_drawn() -> None:
    layers = [layer("a.0", kind="a0"), layer("b.0", kind="b0")]
    for index in range(1, 40):
        layers += [layer(f"{x}.{index}", [f"a.{index - 1}", f"b.{index - 1}"], x) for x in ("a", "b")]
    made = place(graph_of(layers))
    assert len(made.boxes) < 10
    assert not [(a.box, b.box) for i, a in enumerate(made.boxes) for b in made.boxes[:i] if cover(a, b)]
    assert {(e.source.box.branch, e.target.box.branch) for e in made.edges if e.crosses} == {("a", "b"), ("b", "a")}


def test_a_connection_over_several_layers_of_a_branch_is_drawn_too() -> None:
    layers = [layer("u.0"), layer("u.1", ["u.0"]), layer("u.2", ["u.1"]), layer("u.3", ["u.2", "u.0"])]
    (skip,) = place(graph_of(layers)).edges
    assert (skip.source.box.first.name, skip.target.box.first.name, skip.crosses) == ("u.0", "u.3", False)


def test_everything_lies_on_the_sheet_and_nothing_comes_from_elsewhere(tmp_path: Path) -> None:
    save_picture(big(), tmp_path / "graph.svg")
    text = (tmp_path / "graph.svg").read_text()
    root = parsed(text)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    moved = 28.0 + 8.0  # how far the drawing is moved right at most, with nothing left of it
    for rect in [r for r in root.iter(f"{SVG}rect") if r.get("rx")]:
        assert float(rect.get("x", 0)) + float(rect.get("width", 0)) + moved <= width
        assert float(rect.get("y", 0)) + float(rect.get("height", 0)) <= height
    assert "href" not in text
    assert text.count("http") == 1  # the namespace


def test_names_of_layers_are_escaped() -> None:
    assert {"a<b>&", 'x"y'} <= set(texts(svg(graph_of([layer("a<b>&.0"), layer('x"y', ["a<b>&.0"])]))))


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"graph\.html: a graph is drawn as SVG; .* graph\.svg"):
        save_picture(big(), tmp_path / "graph.html")

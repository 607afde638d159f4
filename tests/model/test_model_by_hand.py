"""Branches described by hand: the graph that follows, and what is said of a wrong description."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from plait.errors import CaptureError
from plait.model.by_hand import Branches, LossTerm, Part
from plait.model.capture import Captured, capture
from plait.model.graph import Scope
from support.by_hand import branches, pair


@pytest.fixture(scope="module")
def captured() -> Captured:
    return capture(*pair(), branches=branches())


def test_export_refuses_the_model_and_the_message_points_to_the_description() -> None:
    with pytest.raises(CaptureError, match=r"cannot be traced.*plait\.Branches"):
        capture(*pair())


def test_branches_and_layers_are_those_described(captured: Captured) -> None:
    found = {name: [x.name for x in layers] for name, layers in captured.graph.branches.items()}
    assert found == {
        "vision": ["vision.stem", "vision.blocks.0", "vision.blocks.1", "vision.blocks.2", "pool"],
        "text": ["text.tokens", "text.blocks.0", "text.blocks.1", "tell"],
        "joint": ["contrast"],
    }
    assert captured.graph.interactions == (("image", "pool", "contrast"), ("text", "text.blocks.1", "contrast"))


def test_scopes_are_found_by_trying(captured: Captured) -> None:
    assert {t.value: t.scope for t in captured.graph.losses} == {"contrast": Scope.BATCH, "tell": Scope.WEIGHTED}


def test_tied_parameters_stand_in_both_layers_and_unlisted_ones_in_a_note(captured: Captured) -> None:
    holders = [x.name for x in captured.graph.layers if "text.tokens.weight" in [p.name for p in x.parameters]]
    assert holders == ["text.tokens", "tell"]
    assert any("no part uses the parameters spare.weight, spare.bias" in note for note in captured.graph.notes)


def test_the_model_is_left_as_it_was() -> None:
    model, batch = pair()
    before = {name: id(p) for name, p in model.named_parameters()}
    capture(model, batch, branches=branches())
    assert model.training
    assert {name: id(p) for name, p in model.named_parameters()} == before


def test_the_example_of_the_documentation_works() -> None:
    text = (Path(__file__).parents[2] / "docs" / "by-hand.md").read_text()
    names: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)  # noqa: S102
    assert list(names["captured"].graph.branches) == ["image", "text", "joint"]
    assert names["captured"].graph.losses[0].scope is Scope.BATCH


def test_a_precision_changes_the_values_dtypes() -> None:
    graph = capture(*pair(), branches=branches(), precision="bf16-params").graph
    assert {graph.values[v].dtype for v in ("image", "text", "tell")} == {"bfloat16"}
    assert graph.parameters()["scale"].master == "float32"


def test_a_mean_without_its_count_is_a_loss_over_the_whole_batch() -> None:
    given = replace(branches(), losses=["contrast", LossTerm("tell", coefficient=0.5)])
    graph = capture(*pair(), branches=given).graph
    assert {t.value: t.scope for t in graph.losses} == {"contrast": Scope.BATCH, "tell": Scope.BATCH}
    assert graph.by_name["tell"].branch == "text:tell"


def test_a_count_may_be_a_function_of_inputs() -> None:
    def said(labels: Tensor) -> Tensor:
        return (labels != -100).sum()

    model, batch = pair()
    terms: list[str | LossTerm] = ["contrast", LossTerm("tell", coefficient=0.5, count=said)]
    found = capture(model, batch, branches=replace(branches(), losses=terms))
    assert found.graph.losses[1].scope is Scope.WEIGHTED
    assert found.count(found.graph.losses[1], batch) == float(said(batch["labels"]))


def test_a_given_scope_is_obeyed_and_noted() -> None:
    found = capture(*pair(), branches=branches(), scopes={"contrast": "microbatch"}).graph
    assert {t.value: t.scope for t in found.losses}["contrast"] is Scope.MICROBATCH
    assert any(note.startswith("contrast: scope microbatch, as given, contrary to") for note in found.notes)


def test_a_batch_norm_is_found_to_need_the_whole_batch() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "b": nn.Linear(4, 1)})
    parts: list[Part | str] = [Part("a", reads="x"), "norm", "b", Part("loss", run=lambda _, y: y.square().mean())]
    graph = capture(model, {"x": torch.randn(6, 4)}, branches=Branches({"all": parts}, losses="loss")).graph
    assert {x.name: x.scope for x in graph.layers}["norm"] is Scope.BATCH
    assert list(graph.branches) == ["all", "all:norm", "all:b"]
    assert any("could not be compared with the model's own forward" in note for note in graph.notes)


def test_a_result_may_be_named_by_fields_and_a_module_called_twice() -> None:
    class Twin(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"twice": 2 * x, "sum": x.sum(-1)}

    model = nn.ModuleDict({"layer": nn.Linear(3, 3), "twin": Twin()})
    given: dict[str, list[Part | str]] = {
        "left": [Part("left", run="layer", reads="x"), Part("twin", writes={"s": "sum"})],
        "right": [Part("right", run="layer", reads="y")],
        "end": [Part("loss", run=lambda _, s, r: (s - r.sum(-1)).square().mean(), reads=["s", "right"])],
    }
    batch = {"x": torch.randn(4, 3), "y": torch.randn(4, 3)}
    graph = capture(model, batch, branches=Branches(given, losses="loss")).graph
    assert [x.name for x in graph.layers if x.parameters] == ["left", "right"]
    assert graph.losses[0].scope is Scope.MICROBATCH


def test_parts_that_give_another_loss_than_the_model_are_refused() -> None:
    given = replace(branches(), losses=["contrast", LossTerm("tell", count="labels")])
    with pytest.raises(CaptureError, match="another loss than the model"):
        capture(*pair(), branches=given)


def _text(*parts: Part | str, losses: str | LossTerm = "end", **others: Sequence[Part | str]) -> Branches:
    return Branches({"text": list(parts), **others}, losses=losses)


def _mean(_: nn.Module, *given: Tensor) -> Tensor:
    return torch.stack([x.float().mean() for x in given]).mean()


TOKENS = Part("text.tokens", reads="ids")
END = Part("end", run=_mean)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            _text(TOKENS, Part("end", run=_mean, reads="tokens")),
            "text: end: reads 'tokens', which no part writes.*text.to",
        ),
        (
            _text(TOKENS, END, other=[Part("end", _mean, "ids")]),
            "other: end: the branch text has a part of this name too",
        ),
        (_text(TOKENS, Part("e", run=_mean, writes="text.tokens")), "text: e: writes text.tokens, which text: text.to"),
        (_text(TOKENS, Part("e", run=_mean, writes="ids")), "text: e: writes ids, which is the name of an input"),
        (
            _text(Part("end", run=_mean, reads="text.tokens"), TOKENS),
            "text: end: reads text.tokens, which text.tokens writes, a later part of its branch",
        ),
        (
            _text(Part("a", _mean, "b"), END, other=[Part("b", _mean, "a")]),
            r"wait for each other in a circle: a \(branch text\), end \(branch text\), b \(branch other\)",
        ),
        (_text(TOKENS, END, losses="loss"), "loss is written by no part; the parts write end, text.tokens"),
        (_text(TOKENS, END, losses=""), "is written by no part"),
        (Branches({"text": [TOKENS]}), "there is no loss and no output"),
        (
            _text(Part("text.token", reads="ids"), END),
            "text: text.token: the model has no submodule.*text has tokens, b",
        ),
        (_text(Part("scale", reads="ids"), END), "scale is no submodule but a tensor"),
        (_text(END), "text: end: give what it reads: it is the first of its branch"),
        (_text(TOKENS, END, other=[Part("pad", _mean, "ids")]), "other: pad: nothing reads what it writes"),
        (_text(TOKENS, "text.blocks.0", losses="text.blocks.0"), "the loss text.blocks.0 has 3 dimensions"),
        (_text(TOKENS, Part("end", _mean, writes=["end", "rest"])), "writes end, rest, but gives one tensor"),
        (_text(TOKENS, Part("end", lambda _, x: {"a": x})), "end: writes end, but gives a dict; say which field"),
        (_text(TOKENS, Part("end", _mean, writes={"end": "a"})), "its result has no field 'a'; it is a Tensor"),
        (
            _text(TOKENS, Part("end", lambda model, x: model.scale * x.mean())),
            r"text: end: raises AttributeError.*'scale'. It is shown only what it uses \(nothing\)",
        ),
        (_text(TOKENS, Part("end", lambda _, x: x.mean() @ x)), "text: end: raises RuntimeError for 2 samples"),
        (_text(TOKENS, END, losses=LossTerm("end", count="masks")), "end: count: the batch has no input 'masks'"),
        (_text(TOKENS, END, losses=LossTerm("end", scope="global")), "'global' is not a scope"),
        (_text(TOKENS, END, losses=LossTerm("end", scope="weighted")), "the scope weighted needs a count"),
        (_text(TOKENS, Part("end", _mean, reads=3)), "text: end: reads: 3; give a name or a list of names"),  # type: ignore[arg-type]
        (_text(TOKENS, Part("end", _mean, uses=[3])), r"text: end: uses: \[3\]; give a name"),  # type: ignore[list-item]
        (_text(TOKENS, END, losses=3), "losses: 3 is no name of a value"),  # type: ignore[arg-type]
        (Branches([TOKENS, END], losses="end"), "give a dict, {branch: "),  # type: ignore[arg-type]
        (Branches({"text": "text.tokens"}, losses="end"), "text: 'text.tokens'; give a list of its parts"),
        ({"text": [TOKENS, END]}, r"branches: it is a dict; give plait\.Branches"),
    ],
)
def test_what_is_wrong_is_said_of_its_branch_and_part(given: Branches, message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture(*pair(), branches=given)


def test_a_part_that_raises_for_other_samples_is_refused() -> None:
    def picky(_: nn.Module, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise KeyError("too many")
        return x.mean()

    with pytest.raises(CaptureError, match="a part raises KeyError for 5 samples"):
        capture(*pair(), branches=_text(TOKENS, Part("end", picky)))


def test_a_parameter_that_a_part_reaches_otherwise_must_be_among_its_uses() -> None:
    model, batch = pair()
    reach: Callable[..., Tensor] = lambda _, x: model.scale * x.mean()  # noqa: E731
    with pytest.raises(CaptureError, match="text: end: uses the parameter scale, which is not among its uses"):
        capture(model, batch, branches=_text(TOKENS, Part("end", reach)))


def test_a_branch_can_not_go_on_behind_what_joins_it_elsewhere() -> None:
    given = Branches(
        {
            "text": [TOKENS, Part("after", lambda _, x, m: x + m, ["text.tokens", "joined"]), END],
            "other": [Part("joined", lambda _, x: x.mean(-1, keepdim=True), "text.tokens")],
        },
        losses="end",
    )
    with pytest.raises(
        CaptureError, match=r"text: after: reads joined, which is made from text\.tokens in the branch other"
    ):
        capture(*pair(), branches=given)

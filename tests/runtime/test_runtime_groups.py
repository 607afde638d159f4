"""Parameters are sorted into the same groups on every rank, whichever of them it holds."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from plait.errors import RunError
from plait.model.capture import capture
from plait.plan.groups import GroupRule
from plait.runtime.groups import NamedParameters, parameter_groups, trained_branches
from support import models

BRANCHES = {
    "image.weight": frozenset({"image"}),
    "image.bias": frozenset({"image"}),
    "text.weight": frozenset({"text"}),
    "text.bias": frozenset({"text"}),
    "scale": frozenset({"image", "text"}),
}
NO_DECAY = GroupRule(names=("*.bias", "scale"), options={"weight_decay": 0.0})
SLOW_IMAGE = GroupRule(branches=("image",), options={"lr": 0.01})


def params(*own: str) -> NamedParameters:
    return NamedParameters([(name, nn.Parameter(torch.zeros(1))) for name in own or BRANCHES], BRANCHES)


def names_of(given: NamedParameters, rules: Sequence[GroupRule]) -> list[tuple[set[str], dict[str, float]]]:
    """Per group the names of its parameters, and its options."""
    known = {id(p): name for name, p in given}
    return [
        ({known[id(p)] for p in group.pop("params")}, group) for group in parameter_groups(given, rules)
    ]  # fmt: skip


def test_a_parameter_has_the_options_of_all_rules_that_suit_it() -> None:
    assert names_of(params(), [NO_DECAY, SLOW_IMAGE]) == [
        ({"image.weight"}, {"lr": 0.01}),
        ({"image.bias", "scale"}, {"weight_decay": 0.0, "lr": 0.01}),
        ({"text.weight"}, {}),
        ({"text.bias"}, {"weight_decay": 0.0}),
    ]


def test_the_later_of_two_rules_holds() -> None:
    rules = [GroupRule(names=("image.*",), options={"lr": 1.0}), GroupRule(names=("*.weight",), options={"lr": 2.0})]
    rates = {name: options.get("lr") for names, options in names_of(params(), rules) for name in names}
    assert rates == {"image.weight": 2.0, "image.bias": 1.0, "text.weight": 2.0, "text.bias": None, "scale": None}


def test_a_rule_with_names_and_branches_is_for_what_suits_both() -> None:
    rule = GroupRule(names=("*.bias",), branches=("text",), options={"lr": 0.0})
    assert [names for names, options in names_of(params(), [rule]) if options] == [{"text.bias"}]


def test_ranks_with_different_parameters_have_the_same_groups() -> None:
    rules = [NO_DECAY, SLOW_IMAGE]
    whole = names_of(params(), rules)
    for own in (["text.bias"], ["image.weight", "scale"]):
        found = names_of(params(*own), rules)
        assert [options for _, options in found] == [options for _, options in whole]
        assert [names for names, _ in found] == [names & set(own) for names, _ in whole]
        torch.optim.AdamW(parameter_groups(params(*own), rules))  # groups without parameters are no harm


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (GroupRule(names=("imgae.*",), options={}), "rule 0: 'imgae.*' is no trained parameter's name; near it are"),
        (GroupRule(branches=("sound",), options={}), r"rule 0: branches: none is named 'sound' .* \['image', 'text'\]"),
        (GroupRule(names=("text.*",), branches=("image",), options={}), "no parameter of image has a name like"),
    ],
)
def test_a_rule_that_suits_nothing_is_refused_with_what_is_near(rule: GroupRule, words: str) -> None:
    with pytest.raises(RunError, match=words):
        parameter_groups(params("text.bias"), [rule])


def test_frozen_parameters_are_in_no_group_and_branches_are_those_of_capture() -> None:
    model, batch = models.clip()
    for parameter in model.get_submodule("vision_model").parameters():
        parameter.requires_grad_(False)
    branches = trained_branches([capture(model, batch).graph])
    assert not [name for name in branches if name.startswith("vision_model.")]
    assert branches["text_model.encoder.layers.0.mlp.fc1.bias"] == {"text_model"}

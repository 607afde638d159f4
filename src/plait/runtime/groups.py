"""The parameters that an optimizer is made of, in groups that are the same on every rank."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, overload

from torch import nn

from plait.errors import RunError
from plait.model.graph import BranchGraph
from plait.plan.groups import GroupRule

Pair = tuple[str, nn.Parameter]


class NamedParameters(Sequence[Pair]):
    """One rank's trained (name, parameter) pairs. It knows what the other ranks train, too.

    Attributes:
        branches: every trained parameter of the model, also those of other ranks → the branches that use it.
    """

    def __init__(self, own: Iterable[Pair], branches: Mapping[str, frozenset[str]]) -> None:
        self._own = tuple(own)
        self.branches = branches

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | Sequence[Pair]:
        return self._own[index]

    def __len__(self) -> int:
        return len(self._own)


def trained_branches(graphs: Iterable[BranchGraph]) -> dict[str, frozenset[str]]:
    """Every parameter of the graphs that learns → the branches that use it."""
    found: dict[str, set[str]] = {}
    for graph in graphs:
        for layer in graph.layers:
            for parameter in layer.parameters:
                if parameter.trainable:
                    found.setdefault(parameter.name, set()).add(layer.branch)
    return {name: frozenset(branches) for name, branches in found.items()}


def parameter_groups(
    params: NamedParameters, rules: Sequence[GroupRule] | Mapping[str, GroupRule]
) -> list[dict[str, Any]]:
    """The groups that ``rules`` make, as ``torch.optim`` takes them, in the same order on every rank.

    A parameter has the options of all rules that suit it; of two that give the same option the later one holds. A
    group stands also on a rank that holds none of its parameters, so that its learning rate and its place in a
    checkpoint are known everywhere.

    Raises:
        RunError: a pattern or branch of a rule suits no trained parameter of the model. The message begins with the
            rule's key, or its number.
    """
    named = dict(rules) if isinstance(rules, Mapping) else {f"rule {i}": rule for i, rule in enumerate(rules)}
    for where, rule in named.items():
        _check(where, rule, params.branches)
    own = dict(params)
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, branches in params.branches.items():
        key = tuple(k for k, rule in named.items() if rule.suits(name, branches))
        if key not in groups:
            groups[key] = {"params": []} | {o: v for k in key for o, v in named[k].options.items()}
        groups[key]["params"] += [own[name]] if name in own else []
    return list(groups.values())


def _check(where: str, rule: GroupRule, branches: Mapping[str, frozenset[str]]) -> None:
    known = sorted({branch for found in branches.values() for branch in found})
    for branch in rule.branches:
        if branch not in known:
            raise RunError(f"{where}: branches: none is named {branch!r} and learns; those that do are {known}")
    for pattern in rule.names:
        if not any(fnmatchcase(name, pattern) for name in branches):
            raise RunError(f"{where}: {pattern!r} is no trained parameter's name{_near(pattern, branches)}")
    if not any(rule.suits(name, found) for name, found in branches.items()):
        raise RunError(f"{where}: no parameter of {', '.join(rule.branches)} has a name like {list(rule.names)}")


def _near(pattern: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(pattern, list(names), n=3, cutoff=0.4)
    return f"; near it are {', '.join(found)}" if found else ""

"""Scopes that the user gives: whose they are, and how far they are from what trying finds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from plait.errors import CaptureError
from plait.model.graph import Scope
from plait.model.losses import Count, Term, counts
from plait.model.tape import Kind, Node, Tape
from plait.model.trial import PARTS, Trial

Scoped = tuple[Term, Scope, Count | None]


@dataclass(frozen=True)
class Told:
    """What the user says: scopes of loss terms by name; nodes that mix samples, and nodes that don't."""

    terms: Mapping[str, Scope]
    mixing: frozenset[int]
    separate: frozenset[int]


def told(tape: Tape, given: Mapping[str, str], terms: Sequence[str]) -> Told:
    """``given`` (name → scope) read; raises CaptureError for a name that is no term's, module's or operation's."""
    scopes = {name: _scope(name, scope) for name, scope in given.items()}
    if "loss" in scopes and any(name in scopes for name in terms if name != "loss"):
        raise CaptureError(f"scopes: give that of the whole loss or of its terms, not both: {', '.join(scopes)}")
    nodes = {name: _nodes(tape, name) for name in scopes if name not in terms}
    for name, found in nodes.items():
        if not found:
            raise CaptureError(_unknown(tape, name, terms))
        if scopes[name] is Scope.WEIGHTED:
            raise CaptureError(f"scopes: {name} is a module; it can have the scope batch or microbatch")
    return Told(
        {name: scope for name, scope in scopes.items() if name in terms},
        frozenset(n for name, found in nodes.items() if scopes[name] is Scope.BATCH for n in found),
        frozenset(n for name, found in nodes.items() if scopes[name] is Scope.MICROBATCH for n in found),
    )


def _scope(name: str, scope: str) -> Scope:
    try:
        return Scope(scope)
    except ValueError:
        raise CaptureError(f"scopes: {name}: {scope!r} is not a scope; it is {', '.join(Scope)}") from None


def _nodes(tape: Tape, name: str) -> frozenset[int]:
    """A layer module's calls, an operation, or all operations that stand in a module's own code."""
    named = (n for n in tape.nodes if not n.is_source and name in (n.name, n.target))
    found = frozenset(n.number for n in named)
    return found or frozenset(n.number for n in tape.nodes if n.kind is Kind.OP and n.home == name)


def _unknown(tape: Tape, name: str, terms: Sequence[str]) -> str:
    modules = list(dict.fromkeys(str(n.target) for n in tape.nodes if n.kind is Kind.CALL))
    more = ", …" if len(modules) > 12 else ""
    return (
        f"scopes: there is no loss term or module {name!r}; the loss terms are {', '.join(terms) or 'none'}, "
        f"the modules {', '.join(modules[:12])}{more}"
    )


def term_scope(trial: Trial, term: Term, given: Scope | None) -> Scoped:
    """The term with the scope that the user gives, else the one found by trying."""
    tried, count = trial.scope(term.node)
    if given is None or given is tried:
        return term, tried, count
    if given is not Scope.WEIGHTED:
        return term, given, None
    possible = counts(trial.tape, trial.roles, term.node)
    if not possible:
        raise CaptureError(
            "scopes: a loss term is said to be weighted, but it divides by no count that the inputs alone tell; it "
            f"was found to be {tried}"
        )
    return term, given, possible[0]


def own_glue(tape: Tape, term: int) -> frozenset[int]:
    """``term`` and the operations after the last modules that lead to it alone."""
    readers: dict[int, list[int]] = {node.number: [] for node in tape.nodes}
    for node in tape.nodes:
        for argument in node.arguments:
            readers[argument].append(node.number)
    glue = {term}
    for node in reversed(tape.nodes[:term]):
        if node.kind is Kind.OP and readers[node.number] and glue.issuperset(readers[node.number]):
            glue.add(node.number)
    return frozenset(glue)


def term_note(trial: Trial, name: str, found: Scoped) -> str | None:
    """What the user should know of a scope that is given contrary to what was found by trying."""
    term, scope, count = found
    tried, tried_count = trial.scope(term.node)
    if scope is tried:
        return None
    if scope is Scope.BATCH:
        return f"{name}: scope batch, as given; trying found {tried}, with which micro-batches needn't wait"
    whole, mean = trial.whole_and_mean(term.node, count)
    share = f", {abs(mean - whole) / abs(whole):.0%} off" if whole else ""
    words = f"weighted by {tried_count.words}" if tried_count is not None else str(tried)
    return (
        f"{name}: scope {scope}, as given, contrary to what was found by trying ({words}): a batch of "
        f"{sum(PARTS)} samples gives {whole:.6g}, its micro-batches of {' and '.join(map(str, PARTS))} give {mean:.6g} "
        f"together{share}. The plan trains on the latter, which is another loss than the model's"
    )


def separate_notes(trial: Trial, given: Told) -> Iterator[str]:
    """On modules that mix samples and are told to work on each micro-batch alone."""
    named: dict[str, float] = {}
    for number in sorted(given.separate & trial.mixing):
        name = _title(trial.tape.nodes[number])
        named[name] = max(named.get(name, 0.0), trial.differences[number])
    for name, difference in named.items():
        far = f": in a micro-batch its results are up to {difference:.2g} off (largest value: 1)"
        yield (
            f"{name}: scope microbatch, as given, though it mixes samples{far if math.isfinite(difference) else ''}. "
            "The plan trains another model than one process would"
        )


def _title(node: Node) -> str:
    return str(node.target) if node.kind is Kind.CALL else f"{node.home}.{node.name}" if node.home else node.name

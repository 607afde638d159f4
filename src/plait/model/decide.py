"""What the loss is made of: found by trying, or recalled from a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plait.errors import CaptureError
from plait.model.graph import Loss, Scope
from plait.model.group import Cut
from plait.model.losses import Count, Term, counts, terms
from plait.model.traced import Traced
from plait.model.trial import Trial


@dataclass(frozen=True)
class Decision:
    """What was found or is given: the loss terms, and nodes that mix samples though their form doesn't show it."""

    losses: tuple[tuple[Term, Scope, Count | None], ...]
    mixing: frozenset[int]


def decide(traced: Traced, trial: Trial, given: dict[str, str]) -> Decision:
    """Loss terms with their scopes: one if its parts have the same scope in the same layer, else one for each part."""
    tape = traced.tape
    mixing = (trial.mixing - _told(traced, given, Scope.MICROBATCH)) | _told(traced, given, Scope.BATCH)
    if tape.loss is None:
        return Decision((), mixing)
    whole = Term(tape.loss, 1.0)
    parts = terms(tape, tape.loss)
    names = term_names(traced, parts)
    found = [(t, *_scope(trial, t, given.get(names[t.node]))) for t in parts]
    one = (whole, *_scope(trial, whole, given.get("loss")))
    same = len({(scope, None if count is None else count.node) for _, scope, count in found}) == 1
    alone = len(parts) == 1 and parts[0].node == tape.loss
    if alone or (same and one[1] is found[0][1] and _in_one_layer(traced, found, mixing)):
        return _settled(traced, Decision((one,), mixing))
    return _settled(traced, Decision(tuple(found), mixing))


def _settled(traced: Traced, decision: Decision) -> Decision:
    """A term that ended up in a layer of batch scope, after what mixes samples there, is computed once over all."""
    made = cut_layers(traced, decision)
    losses = [
        (term, Scope.BATCH, None) if made.owner[term.node].batch else (term, scope, count)
        for term, scope, count in decision.losses
    ]
    settled = Decision(tuple(losses), decision.mixing)
    return settled if settled == decision else _settled(traced, settled)


def _scope(trial: Trial, term: Term, given: str | None) -> tuple[Scope, Count | None]:
    if given is None:
        return trial.scope(term.node)
    scope = Scope(given)
    possible = counts(trial.tape, trial.roles, term.node)
    if scope is Scope.WEIGHTED and not possible:
        raise CaptureError("scopes: the term is said to be weighted, but no count can be computed from the inputs")
    return scope, possible[0] if scope is Scope.WEIGHTED else None


def _told(traced: Traced, given: Mapping[str, str], scope: Scope) -> frozenset[int]:
    """Nodes that the user says to be of this scope, by an operation's name or a module's path."""
    names = {name for name, value in given.items() if value == scope}
    return frozenset(n.number for n in traced.tape.nodes if n.name in names or n.target in names)


def _in_one_layer(traced: Traced, found: Sequence[tuple[Term, Scope, Count | None]], mixing: frozenset[int]) -> bool:
    decision = Decision(tuple(found), mixing)
    made = cut_layers(traced, decision)
    return len({id(made.owner[term.node]) for term, _, _ in found}) == 1


def cut_layers(traced: Traced, decision: Decision) -> Cut:
    """The layers that follow from ``decision``."""
    batch = [term.node for term, scope, _ in decision.losses if scope is Scope.BATCH]
    mixing = set(decision.mixing) | traced.roles.structural_mixing(traced.tape)
    mixing |= traced.roles.reductions(traced.tape, [*batch, *decision.mixing, *traced.tape.outputs.values()])
    wanted = [term.node for term, _, _ in decision.losses] + list(traced.tape.outputs.values())
    return traced.cut(list(dict.fromkeys(wanted)), sorted(mixing))


def term_names(traced: Traced, parts: Sequence[Term]) -> dict[int, str]:
    """Names of loss terms by node: the whole is "loss", a part is called after its operation."""
    loss = traced.tape.loss
    return {t.node: "loss" if t.node == loss else f"loss.{traced.tape.nodes[t.node].name}" for t in parts}


def recall(traced: Traced, losses: Sequence[Loss], mixing: Sequence[str]) -> Decision:
    """The decision that ``capture`` made, from what the graph says of it."""
    tape = traced.tape
    if tape.loss is None:
        return Decision((), frozenset(n.number for n in tape.nodes if n.name in mixing))
    parts = [Term(tape.loss, 1.0), *terms(tape, tape.loss)]
    by_name = {name: node for node, name in term_names(traced, parts).items()}
    found = []
    for given in losses:
        if given.value not in by_name:
            raise CaptureError(
                f"the loss has no term {given.value!r}; it has {', '.join(by_name)}: is it another model?"
            )
        node = by_name[given.value]
        count = next((c for c in counts(tape, traced.roles, node) if c.words == given.count), None)
        if given.scope is Scope.WEIGHTED and count is None:
            raise CaptureError(f"the loss term {given.value} has no count {given.count!r}: is it another model?")
        found.append((Term(node, given.coefficient), given.scope, count))
    return Decision(tuple(found), frozenset(n.number for n in tape.nodes if n.name in mixing))

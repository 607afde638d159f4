"""What the loss is made of: found by trying, or recalled from a graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from plait.errors import CaptureError
from plait.model.graph import Loss, Scope
from plait.model.group import Cut
from plait.model.losses import Term, counts, terms
from plait.model.tape import Kind
from plait.model.told import Scoped, Told, own_glue, separate_notes, term_note, term_scope, told
from plait.model.traced import Traced
from plait.model.trial import Trial


@dataclass(frozen=True)
class Decision:
    """What was found or is given: the loss terms, and nodes that mix samples though their form doesn't show it."""

    losses: tuple[Scoped, ...]
    mixing: frozenset[int]
    forced: frozenset[int] = frozenset()
    """Terms whose scope the user gives: what mixes samples in their own glue counts for nothing."""
    notes: tuple[str, ...] = ()


def decide(traced: Traced, trial: Trial, given: Mapping[str, str]) -> Decision:
    """Loss terms with their scopes: one if its parts have the same scope in the same layer, else one for each part.

    ``given`` are scopes that the user gives, by the names of loss terms, modules and operations.
    """
    tape = traced.tape
    parts = [] if tape.loss is None else terms(tape, tape.loss)
    whole = [] if tape.loss is None else [Term(tape.loss, 1.0)]
    names = term_names(traced, [*whole, *parts])
    user = told(tape, given, list(names.values()))
    mixing = (trial.mixing - user.separate) | user.mixing
    decision = Decision((), mixing)
    if tape.loss is not None:
        tried = [term_scope(trial, term, user.terms.get(names[term.node])) for term in parts]
        one = term_scope(trial, Term(tape.loss, 1.0), user.terms.get("loss"))
        losses = (one,) if _as_one(traced, one, tried, user, mixing) else tuple(tried)
        forced = frozenset(t.node for t, scope, _ in losses if names[t.node] in user.terms and scope != Scope.BATCH)
        decision = settled(traced, Decision(losses, mixing, forced))
    check_obeyed(traced, decision, user)
    named = [(names[found[0].node], found) for found in decision.losses]
    notes = [term_note(trial, name, found) for name, found in named if name in user.terms]
    return replace(decision, notes=(*trial.notes, *filter(None, notes), *separate_notes(trial, user)))


def _as_one(traced: Traced, one: Scoped, parts: Sequence[Scoped], user: Told, mixing: frozenset[int]) -> bool:
    """Whether the loss is one term, and not several."""
    if user.terms:
        return "loss" in user.terms
    same = len({(scope, None if count is None else count.node) for _, scope, count in parts}) == 1
    alone = len(parts) == 1 and parts[0][0].node == one[0].node
    return alone or (same and one[1] is parts[0][1] and _in_one_layer(traced, parts, mixing))


def settled(traced: Traced, decision: Decision) -> Decision:
    """A term that ended up in a layer of batch scope, after what mixes samples there, is computed once over all."""
    made = cut_layers(traced, decision)
    losses = [
        (term, Scope.BATCH, None) if made.owner[term.node].batch else (term, scope, count)
        for term, scope, count in decision.losses
    ]
    found = replace(decision, losses=tuple(losses))
    return found if found == decision else settled(traced, found)


def check_obeyed(traced: Traced, decision: Decision, user: Told) -> None:
    """Raise CaptureError where samples are mixed in a place that the user says to be of another scope."""
    made = cut_layers(traced, decision)
    for term, scope, _ in decision.losses:
        if term.node in decision.forced and scope is Scope.BATCH:
            mixers = [
                n for n in made.owner[term.node].nodes if n in made.mixing and n not in own_glue(traced.tape, term.node)
            ]
            raise CaptureError(_before(traced, mixers))
    for number in user.separate:
        if number in made.owner and made.owner[number].batch:
            node = traced.tape.nodes[number]
            raise CaptureError(
                f"scopes: {node.home or node.target} ({node.line}) can't have the scope microbatch: a sum over samples "
                "is fed back into each of them, for which every micro-batch is needed"
            )


def _before(traced: Traced, mixers: Sequence[int]) -> str:
    named = [traced.tape.nodes[n] for n in mixers]
    calls = [str(n.target) for n in named if n.kind is Kind.CALL] or [n.name for n in named]
    places = ", ".join(f"{name}: microbatch" for name in dict.fromkeys(calls)) or "its module"
    return (
        "scopes: a loss term can't have the given scope, since it stands behind what mixes samples; say also "
        f"what scope that has ({places})"
    )


def _in_one_layer(traced: Traced, found: Sequence[Scoped], mixing: frozenset[int]) -> bool:
    decision = Decision(tuple(found), mixing)
    made = cut_layers(traced, decision)
    return len({id(made.owner[term.node]) for term, _, _ in found}) == 1


def cut_layers(traced: Traced, decision: Decision) -> Cut:
    """The layers that follow from ``decision``."""
    batch = [term.node for term, scope, _ in decision.losses if scope is Scope.BATCH]
    mixing = set(decision.mixing) | traced.roles.structural_mixing(traced.tape)
    mixing |= traced.roles.reductions(traced.tape, [*batch, *decision.mixing, *traced.tape.outputs.values()])
    mixing -= {n for term in decision.forced for n in own_glue(traced.tape, term)}
    wanted = [term.node for term, _, _ in decision.losses] + list(traced.tape.outputs.values())
    return traced.cut(list(dict.fromkeys(wanted)), sorted(mixing))


def term_names(traced: Traced, parts: Sequence[Term]) -> dict[int, str]:
    """Names of loss terms by node."""
    return {term.node: traced.term_name(term.node) for term in parts}


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
    forced = frozenset(by_name[given.value] for given in losses if given.told)
    return Decision(tuple(found), frozenset(n.number for n in tape.nodes if n.name in mixing), forced)

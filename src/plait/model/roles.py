"""What each node of a tape is to the cut into layers: free, owned, reduced over samples, mixing samples."""

from collections.abc import Iterable
from dataclasses import dataclass

from plait.model.measure import Measures
from plait.model.tape import Kind, Node, Tape


@dataclass(frozen=True)
class Roles:
    """Per node of the tape.

    ``owned`` nodes belong to one layer; the others are cheap to repeat (they depend on data inputs alone, or on
    parameters alone) and are repeated in every layer that uses them. ``reduced`` values come from several samples
    but hold no entry for each: a sum over the batch, a matrix of samples × samples.
    """

    owned: tuple[bool, ...]
    reduced: tuple[bool, ...]

    def structural_mixing(self, tape: Tape) -> set[int]:
        """Owned nodes that feed a reduced value back into values of single samples, with what they reduce."""
        back = [
            n.number
            for n in tape.nodes
            if self.owned[n.number] and not self.reduced[n.number] and any(self.is_reduction(a) for a in n.arguments)
        ]
        return set(back) | self.reductions(tape, back)

    def is_reduction(self, number: int) -> bool:
        """Whether the node is owned and reduced."""
        return self.owned[number] and self.reduced[number]

    def reductions(self, tape: Tape, numbers: Iterable[int]) -> set[int]:
        """The owned reduced nodes directly before ``numbers``, or among them, and those before these."""
        found: set[int] = set()
        waiting = [a for n in numbers for a in (n, *tape.nodes[n].arguments) if self.is_reduction(a)]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [a for a in tape.nodes[number].arguments if self.is_reduction(a)]
        return found


def roles(tape: Tape, measures: Measures) -> Roles:
    """The roles of all nodes."""
    owned: list[bool] = []
    reduced: list[bool] = []
    data: list[bool] = []
    weights: list[bool] = []
    for node in tape.nodes:
        before = list(node.arguments)
        data.append(node.kind is Kind.INPUT or any(data[a] for a in before))
        weights.append(node.kind is Kind.PARAMETER or any(weights[a] for a in before))
        own = _is_work(node, measures) or measures.random[node.number] or any(owned[a] for a in before)
        owned.append(not node.is_source and (own or (data[-1] and weights[-1])))
        reduced.append(_is_reduced(node, measures.data[node.number], [reduced[a] and owned[a] for a in before]))
    return Roles(tuple(owned), tuple(reduced))


def _is_work(node: Node, measures: Measures) -> bool:
    """Whether it calls a module for more than a lookup by numbers that no sample gives: positions, types of tokens."""
    return node.kind is Kind.CALL and (measures.data[node.number] or measures.flops[node.number] > 0)


def _is_reduced(node: Node, batched: bool, before: list[bool]) -> bool:
    if node.form is None:  # several results: as what they are made of
        return any(before)
    return (batched or bool(node.form.batch_dims)) and not node.form.per_sample

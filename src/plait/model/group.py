"""A tape's nodes cut into layers: around every module call the glue that belongs to it."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from plait.model.measure import Measures
from plait.model.roles import Roles
from plait.model.tape import Kind, Node, Tape

SMALL = 0.25
"""A layer with at most this share of its neighbour's FLOPs and parameters is merged into it."""

_aten = torch.ops.aten
_SHAPING = frozenset(
    {
        _aten.t.default, _aten.numpy_T.default, _aten.mT.default, _aten.transpose.int, _aten.permute.default,
        _aten.view.default, _aten.reshape.default, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.alias.default,
        _aten.flatten.using_ints, _aten.expand.default, _aten.contiguous.default, _aten.clone.default,
        _aten.to.dtype, _aten.to.dtype_layout, _aten.to.device,
    }
)  # fmt: skip
"""Operations that only give a value another form; they go to whoever wants that form."""


@dataclass
class Group:
    """A layer in the making: the nodes that it owns."""

    nodes: list[int]
    batch: bool = False
    head: bool = False
    """Whether it begins a branch by itself: it looks up what a data input gives (embeddings)."""
    name: str = ""
    """The user's, where the layers are described by hand."""
    branch: str = ""


@dataclass(frozen=True)
class Weights:
    """Per node, the items of the parameters that it uses; for telling small layers."""

    items: tuple[int, ...]


@dataclass
class Cut:
    """Groups and who owns each node; ``wanted`` are the nodes whose values must leave their layers."""

    tape: Tape
    roles: Roles
    measures: Measures
    weights: Weights
    wanted: Collection[int]
    mixing: Collection[int]
    groups: list[Group] = field(default_factory=list)
    owner: dict[int, Group] = field(default_factory=dict)

    def index(self, group: Group) -> int:
        """The group's position."""
        return next(i for i, g in enumerate(self.groups) if g is group)

    def before(self) -> list[set[int]]:
        """Per group, the groups whose values it reads."""
        place = {id(g): i for i, g in enumerate(self.groups)}
        found: list[set[int]] = [set() for _ in self.groups]
        for number, group in self.owner.items():
            for argument in self.tape.nodes[number].arguments:
                maker = self.owner.get(argument)
                if maker is not None and maker is not group:
                    found[place[id(group)]].add(place[id(maker)])
        return found

    def flops(self, group: Group) -> float:
        """FLOPs of one sample's forward."""
        return sum(self.measures.flops[n] for n in group.nodes)

    def is_glue(self, group: Group) -> bool:
        """Whether it neither holds parameters nor multiplies matrices."""
        return not self.items(group) and not self.flops(group)

    def is_lookup(self, group: Group) -> bool:
        """Whether it has parameters but multiplies nothing: embeddings."""
        return bool(self.items(group)) and not self.flops(group)

    def is_loss(self, group: Group) -> bool:
        """Whether all that it gives away are scalars."""
        forms = [self.tape.nodes[n].form for n in group.nodes if n in self.wanted]
        return bool(forms) and all(form is not None and not form.dims for form in forms)

    def has_modules(self, group: Group) -> bool:
        """Whether it calls any module."""
        return any(self.tape.nodes[n].kind is Kind.CALL for n in group.nodes)

    def has_data(self, group: Group) -> bool:
        """Whether it computes anything from the samples."""
        return any(self.measures.data[n] for n in group.nodes)

    def items(self, group: Group) -> int:
        """Items of its parameters."""
        return sum(self.weights.items[n] for n in group.nodes)


def cut(
    tape: Tape, roles: Roles, measures: Measures, weights: Weights, wanted: Collection[int], mixing: Collection[int]
) -> Cut:
    """The layers of ``tape`` in topological order; ``mixing`` nodes stand in groups of their own, of batch scope."""
    made = Cut(tape, roles, measures, weights, wanted, mixing)
    full: list[set[int]] = []
    place: dict[int, int] = {}
    for number in tape.ancestors(list(wanted)):
        if roles.owned[number] or number in wanted:
            _assign(made, tape.nodes[number], place, full)
    _sink(made)
    _sort(made)
    _merge_heads(made)
    _merge_small(made)
    _merge_losses(made)
    _sort(made)
    return made


def _assign(made: Cut, node: Node, place: dict[int, int], full: list[set[int]]) -> None:
    """Put ``node`` into the last of the groups that it reads, or into a new one.

    ``place`` has each group's position by its id; ``full`` per group all groups before it, itself included.
    """
    makers = sorted({place[id(made.owner[a])] for a in node.arguments if a in made.owner})
    batch = node.number in made.mixing
    latest = _latest(makers, full)
    seed = node.kind is Kind.CALL or latest is None
    if not seed and latest is not None and (made.groups[latest].batch == batch or _is_item(made, node)):
        group = made.groups[latest]
    else:
        group = Group([], batch)
        place[id(group)] = len(made.groups)
        full.append({len(made.groups)}.union(*(full[m] for m in makers)))
        made.groups.append(group)
    group.nodes.append(node.number)
    made.owner[node.number] = group


def _is_item(made: Cut, node: Node) -> bool:
    return any(made.tape.nodes[a].form is None for a in node.arguments)


def closure(before: Sequence[set[int]]) -> list[set[int]]:
    """Per group, all groups before it, itself included."""
    order = topological(before)
    found: list[set[int]] = [set() for _ in before]
    for index in order:
        found[index] = {index}.union(*(found[b] for b in before[index]))
    return found


def topological(before: Sequence[set[int]]) -> list[int]:
    """Groups in an order that follows ``before``, the lowest number first."""
    left = [len(b) for b in before]
    after = inverse(before)
    ready = [index for index, count in enumerate(left) if not count]
    done: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        done.append(index)
        for other in after[index]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    return done


def reduction(before: Sequence[set[int]]) -> list[set[int]]:
    """Per group, the groups before it that no other of its groups before depends on."""
    full = closure(before)
    return [{b for b in bs if not any(b in full[o] for o in bs if o != b)} for bs in before]


def _latest(makers: Sequence[int], full: Sequence[set[int]]) -> int | None:
    """The one of ``makers`` that depends on all the others; None where they are independent or none."""
    return next((m for m in makers if all(o in full[m] for o in makers)), None)


def _sink(made: Cut) -> None:
    """Move operations that only reshape a value to the one layer that reads it so."""
    consumers: dict[int, list[int]] = {}
    for number in made.owner:
        for argument in made.tape.nodes[number].arguments:
            consumers.setdefault(argument, []).append(number)
    for number in sorted(made.owner, reverse=True):
        node = made.tape.nodes[number]
        group = made.owner[number]
        targets = {id(made.owner[c]): made.owner[c] for c in consumers.get(number, [])}
        if node.target not in _SHAPING or number in made.wanted or len(targets) != 1 or len(group.nodes) == 1:
            continue
        target = next(iter(targets.values()))
        inputs_sink = not any(made.roles.owned[a] and made.tape.nodes[a].form is None for a in node.arguments)
        if target is not group and inputs_sink and number not in made.mixing:
            group.nodes.remove(number)
            target.nodes.append(number)
            target.nodes.sort()
            made.owner[number] = target


def _sort(made: Cut) -> None:
    made.groups.sort(key=lambda g: g.nodes[0])
    made.groups = [made.groups[i] for i in topological(made.before())]


def _join(made: Cut, into: Group, other: Group) -> None:
    into.nodes = sorted([*into.nodes, *other.nodes])
    for number in other.nodes:
        made.owner[number] = into
    made.groups = [g for g in made.groups if g is not other]


def _merge_heads(made: Cut) -> None:
    """Merge lookups that are only added up (token and position embeddings) into the layer that adds them.

    It begins a branch, also where another branch's values are put among the embeddings (an image's into a text).
    """
    while (found := _lookups(made)) is not None:
        group, heads, rest = found
        of_data = any(made.has_data(head) for head in heads)  # positions are looked up by their number alone
        for head in heads:
            _join(made, group, head)
        group.head = of_data and bool(rest) and not any(r.head for r in rest)
        _sort(made)


def _lookups(made: Cut) -> tuple[Group, list[Group], list[Group]] | None:
    """A group that adds up lookups, these, and what else it reads."""
    before = made.before()
    after = inverse(before)
    for index, group in enumerate(made.groups):
        heads = [
            made.groups[h]
            for h in sorted(before[index])
            if not before[h] and after[h] == {index} and made.is_lookup(made.groups[h])
        ]
        plain = made.is_glue(group) and not group.batch
        if heads and len(before[index]) > 1 and plain and not _holds_wanted(made, group):
            rest = [made.groups[b] for b in before[index] if made.groups[b] not in heads]
            return group, heads, rest
    return None


def inverse(before: Sequence[set[int]]) -> list[set[int]]:
    """Per group, the groups that read its values."""
    after: list[set[int]] = [set() for _ in before]
    for index, groups in enumerate(before):
        for other in groups:
            after[other].add(index)
    return after


def _holds_wanted(made: Cut, group: Group) -> bool:
    return any(n in made.wanted for n in group.nodes)


def _merge_small(made: Cut) -> None:
    while (pair := _small_pair(made)) is not None:
        _join(made, *pair)
        _sort(made)


def _small_pair(made: Cut) -> tuple[Group, Group] | None:
    """A group and its small neighbour on the chain, to be merged."""
    before = made.before()
    full = closure(before)
    near = inverse(reduction(before))
    after = inverse(before)
    for index, group in enumerate(made.groups):
        latest = _latest(sorted(before[index]), full)
        if latest is None or near[latest] != {index} or group.head:
            continue
        # Glue after a layer of batch scope may as well run there, once for all samples.
        glue_after_batch = made.groups[latest].batch and made.is_glue(group)
        if glue_after_batch or _is_small(made, group, made.groups[latest]):
            return made.groups[latest], group
    for index, group in enumerate(made.groups):
        if len(after[index]) != 1 or _holds_wanted(made, group):
            continue
        reader = made.groups[next(iter(after[index]))]
        light = made.is_glue(group) or not made.has_data(group) or _is_aside(made, index, before[index], reader)
        light |= _waits_alike(made, index, made.index(reader), before)
        if reader.batch == group.batch and light:
            return reader, group
    return None


def _waits_alike(made: Cut, index: int, reader: int, before: Sequence[set[int]]) -> bool:
    """Whether it is part of a loss over the batch, and ``reader``, which sums it up, waits for nothing more."""
    group = made.groups[index]
    if not group.batch or made.has_modules(group):
        return False
    needed: set[int] = set()
    waiting = set(before[reader])
    while waiting:
        other = waiting.pop()
        if made.groups[other].batch and not made.has_modules(made.groups[other]):
            waiting |= before[other]
        else:
            needed.add(other)
    return needed <= before[index]


def _is_aside(made: Cut, index: int, before: Collection[int], reader: Group) -> bool:
    """Whether it is a small step from one branch to its only reader in another, as a projection of a tower's values."""
    group = made.groups[index]
    if not before or group.head:
        return False
    source = made.groups[max(before, key=lambda b: made.flops(made.groups[b]))]
    return _is_small(made, group, reader) or _is_small(made, group, source)


def _merge_losses(made: Cut) -> None:
    """Terms over the whole batch that read the same layers wait for the same: they are one layer."""
    before = made.before()
    read = set().union(*before)
    first: dict[frozenset[int], Group] = {}
    ends = [i for i, group in enumerate(made.groups) if group.batch and i not in read and made.is_loss(group)]
    pairs = [(first.setdefault(frozenset(before[i]), made.groups[i]), made.groups[i]) for i in ends]
    for into, other in pairs:
        if into is not other:
            _join(made, into, other)


def _is_small(made: Cut, group: Group, neighbour: Group) -> bool:
    if group.batch != neighbour.batch:
        return False
    light = made.flops(group) <= SMALL * made.flops(neighbour)
    return light and made.items(group) <= SMALL * made.items(neighbour)


def parameter_items(tape: Tape, sizes: Mapping[str, int]) -> Weights:
    """Items of the parameters that each call or source uses; ``sizes`` maps module paths and parameter names."""
    return Weights(tuple(sizes.get(n.target, 0) if n.kind in (Kind.CALL, Kind.PARAMETER) else 0 for n in tape.nodes))

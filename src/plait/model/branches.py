"""Branches of the layers' DAG, and names for layers, branches and values."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from plait.model.group import Cut, Group, closure, inverse, reduction
from plait.model.steps import is_item
from plait.model.tape import Kind, Node, Ref, Tape


def layer_names(made: Cut, losses: Sequence[int]) -> list[str]:
    """A name for each group: its first module's path, or what its glue is for."""
    names: list[str] = []
    for group in made.groups:
        base = group.name or _layer_name(made, group, losses)
        name, number = base, 2
        while name in names:
            name, number = f"{base}#{number}", number + 1
        names.append(name)
    return names


def primary(made: Cut, group: Group) -> Node:
    """The node that a group is named after: the call with the most parameters, the first of equals."""
    calls = [n for n in group.nodes if made.tape.nodes[n].kind is Kind.CALL]
    heavy = max(calls, key=lambda n: (made.measures.flops[n], made.weights.items[n], -n)) if calls else group.nodes[0]
    return made.tape.nodes[heavy]


def _layer_name(made: Cut, group: Group, losses: Sequence[int]) -> str:
    node = primary(made, group)
    if node.kind is Kind.CALL:
        return str(node.target)
    if any(n in losses for n in group.nodes):
        return "loss"
    return f"{node.home}.{node.name}" if node.home else node.name


def branch_names(made: Cut, names: Sequence[str]) -> list[str]:
    """The branch of each group.

    A group without groups before it begins a branch. One that follows the last group of a branch continues it; where
    several follow it (a fork) the one whose modules are nearest to it does, if any is nearer than the others. One
    that follows several branches continues the nearest (a decoder among the encoder's outputs), else the one that
    only looked up what it reads (a text's embeddings beside an image), else it begins a branch.
    """
    if any(group.branch for group in made.groups):
        return [group.branch for group in made.groups]
    before = made.before()
    full = closure(before)
    near = reduction(before)
    after = inverse(near)
    chains: list[list[int]] = []
    place: dict[int, int] = {}
    for index in range(len(made.groups)):
        # A stage of consecutive layers can only run if no other layer stands between them.
        tails = [
            b
            for b in sorted(before[index])
            if chains[place[b]][-1] == b and not any(b in full[o] for o in before[index] if place[o] != place[b])
        ]
        tail = _continued(made, index, tails, near, after)
        chain = len(chains) if tail is None else place[tail]
        if tail is None:
            chains.append([])
        chains[chain].append(index)
        place[index] = chain
    titles = _titles(made, chains, names)
    return [titles[place[index]] for index in range(len(made.groups))]


def _continued(
    made: Cut, index: int, tails: Sequence[int], near: Sequence[set[int]], after: Sequence[set[int]]
) -> int | None:
    """The group whose branch ``index`` continues; None where it begins one."""
    tails = [t for t in tails if not made.groups[t].batch]
    if made.groups[index].batch or made.groups[index].head or not tails:
        return None
    if near[index] == {tails[0]} and len(tails) == 1:
        return tails[0] if _nearest(made, index, tails[0], after[tails[0]]) else None
    # All that it joins compete, also those whose branch went on otherwise: a fusion of two towers is neither's.
    near_by = {t: affinity(made.groups[index], made.groups[t], made) for t in {*tails, *near[index]}}
    best = max(near_by.values())
    nearest = [t for t, value in near_by.items() if value == best]
    if len(nearest) > 1:
        nearest = [t for t in nearest if made.is_lookup(made.groups[t]) and after[t] == {index}]
    return nearest[0] if len(nearest) == 1 and nearest[0] in tails and any(best) else None


def _nearest(made: Cut, index: int, tail: int, readers: Collection[int]) -> bool:
    """Whether ``index`` is the one of ``readers`` that goes on with what ``tail`` belongs to."""
    near_by = affinity(made.groups[index], made.groups[tail], made)
    others = [affinity(made.groups[o], made.groups[tail], made) for o in readers if o != index]
    return not others or near_by > max(*others, (0, 0))


def affinity(one: Group, two: Group, made: Cut) -> tuple[int, int]:
    """How near two groups stand in the module tree: parts of their paths in common, words in common of the next."""
    here, there = _home(primary(made, one)), _home(primary(made, two))
    shared = _shared(here, there)
    ends = [home[shared] if shared < len(home) else "" for home in (here, there)]
    return shared, _shared(_words(ends[0]), _words(ends[1]))


def _words(part: str) -> list[str]:
    return re.findall(r"[^\W\d_]+|\d+", part)


def _home(node: Node) -> list[str]:
    path = node.home
    if node.kind is Kind.CALL:  # a shared module counts where it is called, not where it was first found
        path = str(node.target)
        inside = not node.home or path.startswith(f"{node.home}.")
        path = path if inside else f"{node.home}.{path.rpartition('.')[2]}"
    return [part for part in path.split(".") if part]


def _shared(one: Sequence[str], two: Sequence[str]) -> int:
    count = 0
    for a, b in zip(one, two, strict=False):
        if a != b:
            break
        count += 1
    return count


def _titles(made: Cut, chains: Sequence[Sequence[int]], names: Sequence[str]) -> list[str]:
    homes = [[_home(primary(made, made.groups[i])) for i in chain] for chain in chains]
    bases = [_title(h, [names[i] for i in chain], len(chains) == 1) for h, chain in zip(homes, chains, strict=True)]
    weights = [[1 + made.items(made.groups[i]) for i in chain] for chain in chains]
    bases = _distinct(bases, [_most(h, w) for h, w in zip(homes, weights, strict=True)])
    return _distinct(bases, [names[chain[0]] for chain in chains])


def _distinct(titles: Sequence[str], others: Sequence[str]) -> list[str]:
    """``titles``, with another one wherever several are the same, if the others tell these all apart."""
    found = list(titles)
    for title, times in Counter(titles).items():
        same = [at for at, one in enumerate(titles) if one == title]
        if times > 1 and len({others[at] for at in same}) == times:
            for at in same:
                found[at] = others[at]
    return found


def _most(homes: Sequence[Sequence[str]], weights: Sequence[int]) -> str:
    """The longest path that more than half of ``homes`` share, by weight."""
    prefixes: Counter[tuple[str, ...]] = Counter()
    for home, weight in zip(homes, weights, strict=True):
        prefixes.update({tuple(home[:length]): weight for length in range(1, len(home) + 1)})
    shared = [".".join(prefix) for prefix, held in prefixes.items() if 2 * held > sum(weights)]
    return max(shared, key=len, default="")


def _title(homes: Sequence[Sequence[str]], names: Sequence[str], alone: bool) -> str:
    if len(homes) == 1:
        return names[0] if len(homes[0]) < 2 else ".".join(homes[0][:-1])
    common = list(homes[0])
    for home in homes:
        common = common[: _shared(common, home)]
    words = _words(homes[0][len(common)]) if all(len(home) > len(common) for home in homes) else []
    for home in homes:
        words = words[: _shared(words, _words(home[len(common)]))] if words else []
    common += ["_".join(words)] if words else []
    if common:
        return ".".join(common)
    first, times = Counter(home[0] for home in homes if home).most_common(1)[0] if any(homes) else (names[0], 1)
    return first if times > 1 else ("model" if alone else names[0])


def value_names(tape: Tape, given: Mapping[int, str]) -> dict[int, str]:
    """A name for each tensor: ``given``'s, else the module that makes it, else the operation."""
    taken: dict[str, int] = {name: number for number, name in given.items()}
    found = dict(given)
    for node in tape.nodes:
        if node.is_source or node.form is None or node.number in given:
            continue
        base = _value_name(tape, node)
        name, number = base, 2
        while name in taken:
            name, number = f"{base}#{number}", number + 1
        taken[name] = node.number
        found[node.number] = name
    return found


def _value_name(tape: Tape, node: Node) -> str:
    first = node.leaves[0] if node.leaves else None
    if is_item(node) and isinstance(first, Ref) and tape.nodes[first.node].kind is Kind.CALL:
        path = str(tape.nodes[first.node].target)
        return path if node.leaves[1] == 0 else f"{path}:{node.leaves[1]}"
    return f"{node.home}.{node.name}" if node.home else node.name

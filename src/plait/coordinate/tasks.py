"""The task graph of a training step: what a list scheduler orders, with priced seconds and message delays."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from plait.schedule.action import ALL, Action, Kind
from plait.schedule.lower import has_gradient
from plait.schedule.placement import Edge, PlacedStage, Placement
from plait.simulate.flat import link_of, price_of
from plait.simulate.prices import Prices, StagePrice

LOCAL = (-1, -1)


@dataclass(slots=True)
class Link:
    """What a task waits for: another one, and the message between them if they are on different ranks."""

    target: int
    pair: tuple[int, int] = LOCAL
    occupies: float = 0.0
    latency: float = 0.0


@dataclass(slots=True)
class Task:
    """Actions that run without a break on one rank: F; N; B, or R and B; I; W."""

    rank: int
    actions: tuple[Action, ...]
    seconds: float
    claims: float = 0.0
    """Bytes more that are held from its start."""
    frees: float = 0.0
    """Bytes less that are held from its end."""
    links: list[Link] = field(default_factory=list)
    waits: int = 0
    """How many tasks must end first."""

    @property
    def action(self) -> Action:
        """The one that stands for it: the last."""
        return self.actions[-1]


Work = tuple[int, int]
"""(stage, micro-batch)."""


def task_graph(placement: Placement, prices: Prices, *, split_backward: bool) -> list[Task]:
    """All tasks of a step, each after those that it waits for; STEP is left out. Raises PlanError without a price."""
    tasks: list[Task] = []
    forward = {work: _add(tasks, _forward(placement, prices, work)) for work in _works(placement)}
    backward: dict[Work, int] = {}
    for work in reversed(list(forward)):
        if placement.stages[work[0]].backward:
            backward[work] = len(tasks)
            tasks += _backward(placement, prices, work, split=split_backward)
            tasks[forward[work]].links.append(Link(backward[work]))
            if len(tasks) > backward[work] + 1:
                tasks[backward[work]].links.append(Link(backward[work] + 1))
    for edge in placement.edges:
        _connect(tasks, placement, prices, edge, forward, backward)
    for task in tasks:
        for link in task.links:
            tasks[link.target].waits += 1
    return tasks


def _works(placement: Placement) -> Iterator[Work]:
    """Stages in topological order, each with its micro-batches."""
    for index, stage in enumerate(placement.stages):
        yield from ((index, m) for m in sorted(stage.rank_of))


def _add(tasks: list[Task], task: Task) -> int:
    tasks.append(task)
    return len(tasks) - 1


def _placed(placement: Placement, prices: Prices, work: Work) -> tuple[PlacedStage, int, StagePrice]:
    stage = placement.stages[work[0]]
    rank = stage.rank_of[work[1]]
    return stage, rank, price_of(placement, prices, rank, *work)


def _forward(placement: Placement, prices: Prices, work: Work) -> Task:
    stage, rank, price = _placed(placement, prices, work)
    again = stage.recompute and stage.backward
    kind = Kind.FORWARD_ONLY if again else Kind.FORWARD
    claims = price.kept_bytes if again else price.held_bytes
    return Task(rank, (Action(kind, *work),), price.forward, claims if stage.backward else 0.0)


def _backward(placement: Placement, prices: Prices, work: Work, *, split: bool) -> list[Task]:
    """B; with recomputation R and B in one; else, if split and both halves have something to do, I and W."""
    stage, rank, price = _placed(placement, prices, work)
    if stage.recompute:
        actions = Action(Kind.RECOMPUTE, *work), Action(Kind.BACKWARD, *work)
        seconds = sum(price.seconds(a.kind) for a in actions)
        return [Task(rank, actions, seconds, price.held_bytes - price.kept_bytes, price.held_bytes)]
    if split and _splits(placement, work[0]):
        return [
            Task(rank, (Action(Kind.INPUT_GRADIENT, *work),), price.input_gradient),
            Task(rank, (Action(Kind.WEIGHT_GRADIENT, *work),), price.weight_gradient, frees=price.held_bytes),
        ]
    seconds = price.seconds(Kind.BACKWARD)
    return [Task(rank, (Action(Kind.BACKWARD, *work),), seconds, frees=price.held_bytes)]


def _splits(placement: Placement, stage: int) -> bool:
    """Not where all micro-batches go at once, the weights are frozen, or nobody waits for the input gradient."""
    placed = placement.stages[stage]
    waited_for = any(has_gradient(edge, placement) for edge in placement.into[stage])
    return placed.weight_gradient and waited_for and not placed.batch_scope


def _connect(
    tasks: list[Task],
    placement: Placement,
    prices: Prices,
    edge: Edge,
    forward: dict[Work, int],
    backward: dict[Work, int],
) -> None:
    """Forward, and where there is a gradient backward, links of an edge; one message per micro-batch as in lowering."""
    source, target = placement.stages[edge.source], placement.stages[edge.target]
    both = source.batch_scope and target.batch_scope
    for m in (ALL,) if both else range(len(placement.micro_batches)):
        here = edge.source, ALL if source.batch_scope else m
        there = edge.target, ALL if target.batch_scope else m
        samples = placement.samples(m)
        _link(tasks, prices, forward[here], forward[there], edge.bytes_per_sample * samples + edge.bytes_fixed)
        if has_gradient(edge, placement):
            nbytes = edge.gradient_bytes_per_sample * samples + edge.gradient_bytes_fixed
            _link(tasks, prices, backward[there], backward[here], nbytes)


def _link(tasks: list[Task], prices: Prices, source: int, target: int, nbytes: float) -> None:
    sender, receiver = tasks[source].rank, tasks[target].rank
    if sender == receiver:
        tasks[source].links.append(Link(target))
    else:
        price = link_of(prices, sender, receiver)
        tasks[source].links.append(Link(target, (sender, receiver), nbytes / price.bandwidth, price.latency))


def longest_paths(tasks: list[Task]) -> list[float]:
    """Per task, the seconds from its start to the end of the step on the longest way, were no rank ever busy."""
    paths = [0.0] * len(tasks)
    for index in reversed(range(len(tasks))):
        after = (link.occupies + link.latency + paths[link.target] for link in tasks[index].links)
        paths[index] = tasks[index].seconds + max(after, default=0.0)
    return paths

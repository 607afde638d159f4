"""Local search: small changes of a layout, kept where the simulator says that they shorten the step."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from plait.plan.choices import StageChoice
from plait.plan.layout import Layout, stage_name
from plait.plan.strands import Work

Merit = tuple[float, float]
"""By what share memory is short, and seconds of the step (infinite where it can't run); less is better."""
Judge = Callable[[Layout], Merit]
REUNIONS = 12
"""Of the layouts around one, those at most that put layers with the same weights together."""


def improve(work: Work, layout: Layout, judge: Judge, *, trials: int) -> Layout:
    """The layout after the best of its neighbours was taken again and again, within so many trials."""
    best = judge(layout)
    while trials > 0:
        around = list(neighbours(work, layout))[:trials]
        trials -= len(around)
        merit, index = min(((judge(other), i) for i, other in enumerate(around)), default=(best, 0))
        if not _better(merit, best):
            break
        best, layout = merit, around[index]
    return layout


def _better(one: Merit, other: Merit) -> bool:
    return one < (other[0], other[1] * (1 - 1e-6))


def relaxed(layout: Layout, judge: Judge) -> Layout:
    """The layout with recomputing left out wherever memory allows it, stage by stage, the largest first."""
    best = judge(layout)
    for stage in sorted(layout.stages, key=lambda s: -len(s.layers)):
        if not stage.recompute:
            continue
        other = _with(layout, {stage.name: replace(stage, recompute=False)})
        merit = judge(other)
        if merit <= best:
            best, layout = merit, other
    return layout


def neighbours(work: Work, layout: Layout) -> Iterator[Layout]:
    """Layouts that differ by one layer across a cut, or by the rank of a stage that is a whole branch on one rank.

    First those that put a layer where another one with the same weights is.
    """
    yield from islice(_reunited(work, layout), REUNIONS)
    for stage in layout.stages:
        after = _next(work, layout, stage)
        if after is not None:
            yield from _shifted(work, layout, stage, after)
        branch = work.graph.by_name[stage.layers[0]].branch
        if len(stage.layers) == len(work.graph.branches[branch]) and len(stage.replicas) == 1:
            yield from _moved(layout, stage)


def _reunited(work: Work, layout: Layout) -> Iterator[Layout]:
    """A layer at an end of its stage put beside one that shares weights with it, whose gradients need no sum then."""
    home = {name: stage for stage in layout.stages for name in stage.layers}
    pairs = [(x, y) for layers in work.tied.values() for x in layers for y in layers if x != y]
    for name, other in dict.fromkeys(pairs):
        stage, target = home[name], home[other]
        alike = work.graph.by_name[name].scope is work.graph.by_name[other].scope
        if alike and stage.replicas != target.replicas and not layout.setting.shape.chimera:
            yield from _beside(work, layout, stage, name, target)


def _beside(work: Work, layout: Layout, stage: StageChoice, name: str, target: StageChoice) -> Iterator[Layout]:
    """The layer put where ``target`` is, which then may give a layer to a neighbour."""
    rest = tuple(x for x in stage.layers if x != name)
    used = {rank for s in layout.stages if s.name != stage.name for rank in s.ranks}
    if name not in (stage.layers[0], stage.layers[-1]) or (not rest and not used.issuperset(stage.ranks)):
        return
    moved = StageChoice(stage_name(work.graph, (name,)), (name,), target.replicas, target.recompute)
    kept = [_cut(work, stage, rest)] if rest else []
    order = [moved, *kept] if name == stage.layers[0] else [*kept, moved]
    together = replace(layout, stages=tuple(x for s in layout.stages for x in (order if s is stage else [s])))
    yield together
    for one in together.stages:
        after = _next(work, together, one)
        if after is not None and target.name in (one.name, after.name):
            around = list(_shifted(work, together, one, after))
            yield from (x for x in around if _count(x, target) < _count(together, target))


def _count(layout: Layout, stage: StageChoice) -> int:
    """How many layers are where ``stage`` is."""
    return sum(len(s.layers) for s in layout.stages if s.replicas == stage.replicas)


def _next(work: Work, layout: Layout, stage: StageChoice) -> StageChoice | None:
    """The stage that goes on with the branch; None where there is none or it must begin where it does."""
    layers = [x.name for x in work.graph.branches[work.graph.by_name[stage.layers[0]].branch]]
    at = layers.index(stage.layers[-1]) + 1
    if at == len(layers) or layers[at] in work.forced:
        return None
    return next(s for s in layout.stages if s.layers[0] == layers[at])


def _shifted(work: Work, layout: Layout, before: StageChoice, after: StageChoice) -> Iterator[Layout]:
    """One layer from ``before`` to ``after``, and the other way."""
    ways = (
        (before.layers[:-1], (before.layers[-1], *after.layers)),
        ((*before.layers, after.layers[0]), after.layers[1:]),
    )
    for one, two in ways:
        if one and two:
            yield _with(layout, {before.name: _cut(work, before, one), after.name: _cut(work, after, two)})


def _cut(work: Work, stage: StageChoice, layers: tuple[str, ...]) -> StageChoice:
    return replace(stage, name=stage_name(work.graph, layers), layers=layers)


def _moved(layout: Layout, stage: StageChoice) -> Iterator[Layout]:
    """The stage on each other rank, unless that leaves its own with nothing."""
    ((rank, numbers),) = stage.replicas
    if not any(rank in s.ranks for s in layout.stages if s.name != stage.name):
        return
    for other in range(len(layout.devices)):
        if other != rank:
            yield _with(layout, {stage.name: replace(stage, replicas=((other, numbers),))})


def _with(layout: Layout, changed: dict[str, StageChoice]) -> Layout:
    return replace(layout, stages=tuple(changed.get(s.name, s) for s in layout.stages))

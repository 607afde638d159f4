"""Local search: small changes of a layout, kept where the simulator says that they shorten the step."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from plait.plan.choices import StageChoice
from plait.plan.layout import Layout, stage_name
from plait.plan.strands import Work

Merit = tuple[float, float]
"""By what share memory is short, and seconds of the step (infinite where it can't run); less is better."""
Judge = Callable[[Layout], Merit]


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
    """Layouts that differ by one layer across a cut, or by the rank of a stage that is a whole branch on one rank."""
    order = {x.name: i for i, x in enumerate(work.graph.layers)}
    stages = sorted(layout.stages, key=lambda s: order[s.layers[0]])
    for stage in stages:
        branch = work.graph.by_name[stage.layers[0]].branch
        after = next((s for s in _later(stages, stage) if work.graph.by_name[s.layers[0]].branch == branch), None)
        if after is not None and after.layers[0] not in work.forced:
            yield from _shifted(work, layout, stage, after)
        if len(stage.layers) == len(work.graph.branches[branch]) and len(stage.replicas) == 1:
            yield from _moved(layout, stage)


def _later(stages: list[StageChoice], stage: StageChoice) -> list[StageChoice]:
    return stages[stages.index(stage) + 1 :]


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

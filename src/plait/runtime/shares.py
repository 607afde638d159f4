"""Shares: what each micro-batch's loss terms count for in the global batch's loss."""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from plait.model.graph import Loss, Scope
from plait.schedule.action import ALL

Shares = Mapping[tuple[str, int], float]
"""(loss value, micro-batch or ALL) → its factor in the total loss, coefficient included; they are the seeds of the
backward, so that gradients only need to be summed."""

Slices = Callable[[int], Mapping[str, Tensor]]
"""Micro-batch → the data inputs of its samples."""


def shares_of(
    losses: Sequence[Loss],
    micro_batches: Sequence[int],
    slices: Slices,
    count: Callable[[Loss, Mapping[str, Tensor]], Tensor],
) -> dict[tuple[str, int], float]:
    """The shares of a global batch. A micro-batch with nothing to count has a share of exactly 0."""
    shares: dict[tuple[str, int], float] = {}
    for loss in losses:
        if loss.scope is Scope.BATCH:
            shares[loss.value, ALL] = loss.coefficient
            continue
        if loss.scope is Scope.WEIGHTED:
            weights = [float(count(loss, slices(m))) for m in range(len(micro_batches))]
        else:
            weights = [float(n) for n in micro_batches]
        total = sum(weights)
        for m, weight in enumerate(weights):
            shares[loss.value, m] = loss.coefficient * weight / total if total else 0.0
    return shares

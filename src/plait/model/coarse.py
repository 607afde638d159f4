"""Modules that are too much of a model to be one layer: no plan could balance them against the rest."""

from torch import nn

from plait.model.measure import Measures
from plait.model.tape import Kind, Tape

SHARE = 0.5
"""A single call with more than this share of the forward's work is taken apart."""


def coarse_calls(tape: Tape, measures: Measures, model: nn.Module) -> frozenset[str]:
    """Paths of called modules with more than ``SHARE`` of all FLOPs that consist of several modules with weights.

    A module that the user has put hooks on or compiled stays whole: tracing through it would lose them.
    """
    limit = SHARE * sum(measures.flops)
    calls = [n for n in tape.nodes if n.kind is Kind.CALL and measures.flops[n.number] > limit > 0]
    return frozenset(str(n.target) for n in calls if _can_be_split(model.get_submodule(str(n.target))))


def _can_be_split(module: nn.Module) -> bool:
    parts = [m for m in module.children() if next(m.parameters(), None) is not None]
    own = any(True for _ in module.parameters(recurse=False))
    return len(parts) > 1 and not own and not _is_watched(module)


def _is_watched(module: nn.Module) -> bool:
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
        module._compiled_call_impl,
    )
    return any(hooks)

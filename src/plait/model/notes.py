"""What capture tells the user about a model beside its graph: where micro-batches wait for each other, and why."""

from collections.abc import Sequence
from itertools import compress

from torch import nn

from plait.model.code import LayerNodes
from plait.model.steps import batch_norms, find_module
from plait.model.tape import Kind, Tape


def notes(
    model: nn.Module, tape: Tape, layers: Sequence[LayerNodes], batch: Sequence[bool], inputs: Sequence[str]
) -> list[str]:
    """Sentences on the layers of batch scope (``batch``, per layer) and on ``inputs`` that no layer reads."""
    found = [_waiting(model, tape, layer) for layer in compress(layers, batch)]
    unused = [name for name in inputs if not any(name in layer.inputs for layer in layers)]
    return found + [f"the input {name} is not used" for name in unused]


def _waiting(model: nn.Module, tape: Tape, layer: LayerNodes) -> str:
    calls = [str(tape.nodes[n].target) for n in layer.nodes if tape.nodes[n].kind is Kind.CALL]
    for call in calls:
        for path, norm in batch_norms(find_module(model, call)):
            return _batch_norm(call, f"{call}.{path}" if path else call, norm)
    return f"{layer.name} needs the whole batch at once: micro-batches wait for each other there"


def _batch_norm(call: str, path: str, module: nn.Module) -> str:
    where = f"{path} ({type(module).__name__})"
    return (
        f"{where} takes its statistics over the whole batch: micro-batches wait for each other there. GroupNorm or "
        f"LayerNorm would not make them wait; with `scopes: {{{call}: microbatch}}` each micro-batch has statistics of "
        "its own, as data-parallel training has, and results are no longer those of one process"
    )

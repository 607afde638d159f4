"""The model itself, run on the example where its capture failed: whether it fails of its own tells what to say."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from plait.errors import CaptureError
from plait.model.explain import module_at
from plait.model.restore import unchanged
from plait.model.standins import without_weights
from plait.model.steps import home_of
from plait.model.trace import Asking
from plait.model.traced import LossFunction, question_of
from plait.model.trial import without_dropout
from plait.theirs import said


def check_numbers(model: nn.Module, example: Mapping[str, Tensor]) -> None:
    """Raise CaptureError where parameters have no shape yet, or the batch no numbers though the model has."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise CaptureError(f"{name}: its shape is not known yet; run the model once before it is captured")
    empty = next((name for name, tensor in example.items() if tensor.is_meta), None)
    if empty is not None and without_weights(model) is None:
        raise CaptureError(f"example_batch: {empty!r} is on the meta device; a model with weights is tried on numbers")


def rehearse(
    model: nn.Module, example: Mapping[str, Tensor], outputs: Sequence[str], loss: LossFunction | None
) -> None:
    """Raise CaptureError where the model or its loss fails on the example batch, or the loss is not finite there."""
    question = question_of(model, tuple(example), tuple(outputs), loss, wants_loss=True)
    device = home_of(model)
    batch = {name: tensor.to(device, copy=True) for name, tensor in example.items()}
    name = type(model).__name__
    try:
        with unchanged(model), without_dropout(model):
            found, _ = Asking(question)(batch)
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        where = module_at(error, model) or name
        raise CaptureError(f"{where}: the model fails on the example batch: {said(error)}") from error
    if found is not None and not bool(found.isfinite().all()):
        raise CaptureError(
            f"{name}: its loss for the example batch is {float(found):g}, not finite{_cause(model, example)}"
        )


def _cause(model: nn.Module, example: Mapping[str, Tensor]) -> str:
    """Inputs or weights that aren't finite themselves."""
    inputs = [f"the input {name}" for name, tensor in example.items() if not bool(tensor.isfinite().all())]
    weights = [f"the parameter {name}" for name, p in model.named_parameters() if not bool(p.isfinite().all())]
    found = (inputs + weights)[:1]
    return f"; {found[0]} is not finite either" if found else "; are a logarithm, root or division without care in it?"

"""What each node of a tape costs and whether it draws random numbers or passes gradients, found on fake tensors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from plait.model.graph import TensorSpec
from plait.model.steps import Step
from plait.model.tape import Context, Kind, Tape
from plait.model.unify import SAMPLES


@dataclass(frozen=True)
class Measures:
    """Per node: FLOPs of one sample's forward, whether it draws random numbers, whether a gradient flows back."""

    flops: tuple[float, ...]
    random: tuple[bool, ...]
    gradient: tuple[bool, ...]


class _Recorder(TorchDispatchMode):
    """Counts FLOPs of matrix products and convolutions and notices random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self.random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)
        self.random |= torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs)
        return result


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Attention kernels are tagged as random though without dropout they draw nothing."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get("dropout_p", argument.default_value)
            return bool(given)
    return True


def fake_inputs(specs: Mapping[str, TensorSpec], samples: int, mode: FakeTensorMode) -> dict[str, Tensor]:
    """Fake tensors on a fake CPU in the form of ``specs``."""
    with mode:
        return {
            name: torch.empty(spec.shape_for(samples), dtype=getattr(torch, spec.dtype)) for name, spec in specs.items()
        }


def measure(tape: Tape, model: nn.Module, inputs: Mapping[str, Tensor], mode: FakeTensorMode) -> Measures:
    """Run ``tape`` on fake ``inputs`` with the model's weights fake (``trace.fake_weights``) and in training mode."""
    context = Context(SAMPLES[0], torch.device("cpu"), training=True)
    values: dict[int, Any] = {}
    flops, random, gradient = [], [], []
    with mode, torch.enable_grad():
        for node in tape.nodes:
            recorder = _Recorder()
            with recorder:
                if node.kind is Kind.INPUT:
                    values[node.number] = inputs[node.target]
                else:
                    Step(node, model).run(values, context)
            flops.append(recorder.flops / SAMPLES[0])
            random.append(recorder.random)
            gradient.append(_any_gradient(values[node.number]))
    return Measures(tuple(flops), tuple(random), tuple(gradient))


def _any_gradient(value: Any) -> bool:
    tensors: Iterable[Any] = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(t, Tensor) and t.requires_grad for t in tensors)

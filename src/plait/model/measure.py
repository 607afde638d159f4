"""What each node of a tape costs, depends on and passes on, found by running it on fake tensors."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from plait.model.casting import running
from plait.model.graph import TensorSpec
from plait.model.precision import Precision
from plait.model.steps import Step
from plait.model.tape import Context, Kind, Tape
from plait.model.unify import SAMPLES


@dataclass(frozen=True)
class Measures:
    """Per node: FLOPs of one sample's forward; whether it draws random numbers; whether a gradient flows back.

    ``data`` tells whether its entries depend on those of inputs with a batch dimension, not on their shapes alone.
    """

    flops: tuple[float, ...]
    random: tuple[bool, ...]
    gradient: tuple[bool, ...]
    data: tuple[bool, ...]
    dtypes: tuple[str, ...]
    """Of tensors, as the precision makes them."""


_SHAPE_ONLY = frozenset(
    {"new_empty", "new_full", "new_ones", "new_zeros", "empty_like", "full_like", "ones_like", "zeros_like"}
)
"""Operations that take no more than the shape, dtype and device of a tensor."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs of matrix products and convolutions, notices random numbers and follows the data."""

    def __init__(self, data: Set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0
        self.random = False
        self._data = data
        self._storages: set[int] = set()
        self._alive: list[Any] = []
        """What ran, so that no storage's address is used again meanwhile."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.flops += _flops(func, args, kwargs, result)
        self.random |= torch.Tag.nondeterministic_seeded in func.tags and _draws(func, args, kwargs)
        self._follow(func, (args, kwargs), result)
        return result

    def _follow(self, func: Any, given: Any, result: Any) -> None:
        self._alive.append(result)
        if func._overloadpacket.__name__ not in _SHAPE_ONLY and self.any_data(given):
            self._storages |= {_storage(t) for t in _tensors(result)}

    def any_data(self, value: Any) -> bool:
        """Whether a tensor in ``value`` depends on the data."""
        return bool(self.data_of(value))

    def data_of(self, value: Any) -> set[int]:
        """Storages of the tensors in ``value`` that depend on the data."""
        found = {_storage(t) for t in _tensors(value)}
        return {storage for storage in found if storage in self._data or storage in self._storages}


def _flops(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
    formula = flop_registry.get(func._overloadpacket)
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    if func._overloadpacket.__name__ == "_scaled_dot_product_flash_attention_for_cpu":  # not in torch's registry
        query, key, value = (tensor.shape for tensor in args[:3])
        return float(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]
    return 0.0


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


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


def measure(
    tape: Tape,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    mode: FakeTensorMode,
    precision: Precision = Precision.FP32,
) -> Measures:
    """Run ``tape`` on fake ``inputs`` with the model's weights fake (``trace.fake_weights``) and in training mode."""
    context = Context(SAMPLES[0], torch.device("cpu"), training=True)
    values: dict[int, Any] = {}
    flops, random, gradient, data, dtypes = [], [], [], [], []
    storages: set[int] = set()
    with mode, torch.enable_grad(), running(precision, context.device):
        for node in tape.nodes:
            recorder = Recorder(storages)
            with recorder:
                if node.kind is Kind.INPUT:
                    values[node.number] = inputs[node.target]
                else:
                    Step(node, model).run(values, context)
            value = values[node.number]
            flops.append(recorder.flops / SAMPLES[0])
            random.append(recorder.random)
            gradient.append(any(t.requires_grad for t in _tensors(value)))
            if node.kind is Kind.INPUT and node.form is not None and node.form.per_sample:
                storages.add(_storage(value))
            storages |= recorder.data_of(value)
            data.append(any(_storage(t) in storages for t in _tensors(value)))
            dtypes.append(str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else "")
    return Measures(tuple(flops), tuple(random), tuple(gradient), tuple(data), tuple(dtypes))

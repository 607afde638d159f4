"""Times one layer on one micro-batch, and counts what it holds for its backward."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from plait.cost.table import Timing
from plait.units import parse_seconds, show_seconds

Timer = Callable[[Callable[[], object]], float]
"""Seconds that a call takes on the device."""


@dataclass
class Trial:
    """A layer's code with the values that it reads; ``run`` measures it once, ``result`` is the median of all."""

    code: nn.Module
    values: Mapping[str, Tensor]
    flowing: tuple[str, ...]
    """Read values through which a gradient flows back."""
    forward: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    inputs_only: list[float] = field(default_factory=list)

    def run(self, timer: Timer, *, keep: bool) -> None:
        """Time a forward, a whole backward and a backward to the inputs; forget the times unless ``keep``."""
        taken = self._times(timer)
        if keep:
            for times, seconds in zip((self.forward, self.whole, self.inputs_only), taken, strict=True):
                times.append(seconds)

    def result(self) -> Timing:
        """Medians, to three digits; the weight gradient is what the whole backward takes beside the inputs'."""
        whole, inputs = median(self.whole), median(self.inputs_only)
        weights = max(whole - inputs, 0.0) if self._trained() else 0.0
        return Timing(
            forward=_rounded(median(self.forward)),
            input_gradient=_rounded(inputs),
            weight_gradient=_rounded(weights),
            held=float(held_bytes(self.code, self._leaves())),
        )

    def _times(self, timer: Timer) -> tuple[float, float, float]:
        trained, leaves = self._trained(), self._leaves()
        made: dict[str, Tensor] = {}
        forward = timer(lambda: made.update(self.code(leaves)))
        outputs = _differentiable(made.values())
        wanted = [leaves[name] for name in self.flowing]
        if not outputs or not (wanted or trained):
            return forward, 0.0, 0.0
        seeds = [torch.ones_like(t) for t in outputs]
        whole = timer(lambda: torch.autograd.backward(outputs, seeds, inputs=[*wanted, *trained]))
        if not (wanted and trained):
            return forward, whole, whole if wanted else 0.0
        outputs = _differentiable(self.code(leaves).values())
        inputs = timer(lambda: torch.autograd.grad(outputs, wanted, seeds, allow_unused=True))
        return forward, whole, inputs

    def _trained(self) -> list[Tensor]:
        return [p for p in self.code.parameters() if p.requires_grad]

    def _leaves(self) -> dict[str, Tensor]:
        return {n: v.detach().requires_grad_(n in self.flowing) for n, v in self.values.items()}


def held_bytes(code: nn.Module, values: Mapping[str, Tensor]) -> int:
    """Bytes that a forward keeps for its backward: each storage once, parameters and buffers not counted."""
    fixed = {t.untyped_storage().data_ptr() for t in (*code.parameters(), *code.buffers())}
    held: dict[int, int] = {}
    kept: list[Tensor] = []  # alive until the end, so that no storage's address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in fixed:
            held[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        code(values)
    return sum(held.values())


def cpu_timer(call: Callable[[], object]) -> float:
    """Seconds by the wall clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cuda_timer(call: Callable[[], object]) -> float:
    """Seconds by CUDA events, from an idle device."""
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def optimizer_seconds(
    shapes: Sequence[torch.Size], device: torch.device, timer: Timer, *, repeats: int, warmup: int
) -> float:
    """Seconds of one step of AdamW over parameters of these shapes in fp32: the median after a warm-up."""
    parameters = [nn.Parameter(torch.rand(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.rand_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)
    times = [timer(optimizer.step) for _ in range(warmup + repeats)]
    return median(times[warmup:])


def _differentiable(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [t for t in tensors if t.requires_grad]


def _rounded(seconds: float) -> float:
    return parse_seconds(show_seconds(seconds))

"""Profiles a captured model on this machine: what each kind of layer costs by micro-batch size.

Layers of a kind are measured once. Each layer reads real values: the example batch is run through the
layers before it. All layers are timed in turns, so that a slow moment of the machine falls on all alike.
"""

import contextlib
import datetime
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from plait.cluster import catalog
from plait.cluster.probe import LOCAL
from plait.cost.table import CostTable, Sizes, Timing, kind_of
from plait.cost.timing import Trial, cpu_timer, cuda_timer, optimizer_seconds
from plait.errors import CostError
from plait.model.casting import weights_cast
from plait.model.graph import BranchGraph, Layer, Scope
from plait.model.steps import home_of
from plait.model.streams import undisturbed

if TYPE_CHECKING:
    from plait.model.capture import Captured

Progress = Callable[[int, int], None]
"""Called with (rounds done, rounds altogether)."""

OPTIMIZER_BYTES = 256 * 2**20
"""The optimizer is timed on at most so many bytes of parameters."""


def profile(  # noqa: PLR0913
    captured: "Captured",
    example_batch: Mapping[str, Tensor],
    micro_batch_sizes: Sequence[int],
    *,
    global_batch: int | None = None,
    device: str = "cpu",
    device_type: str | None = None,
    repeats: int = 10,
    warmup: int = 3,
    threads: int = 1,
    progress: Progress | None = None,
) -> CostTable:
    """Measure every kind of layer at each of ``micro_batch_sizes`` samples.

    Args:
        captured: the model; it is left as it was.
        example_batch: the batch it was captured with, or another; its samples are repeated as needed.
        micro_batch_sizes: numbers of samples.
        global_batch: the only size at which layers of batch scope are measured (default: the largest size).
        device: ``cpu``, ``cuda`` or ``cuda:1``.
        device_type: the type's name in the table; ``local`` for a CPU and the catalog's name for a GPU by default.
        repeats: timings whose median is taken.
        warmup: timings before them that are forgotten.
        threads: CPU threads that a device of the cluster stands for.
        progress: told after each round.

    Raises:
        CostError: a size or count is not positive, the device is not here, or the model has no weights.
    """
    sizes = _checked_sizes(micro_batch_sizes, global_batch, repeats, warmup)
    _check_weights(captured)
    where = _device(device)
    timer = cuda_timer if where.type == "cuda" else cpu_timer
    with _undisturbed(captured, where, threads):
        trials = _trials(captured, example_batch, sizes, global_batch or max(sizes), where)
        for done in range(warmup + repeats):
            for trial in trials.values():
                trial.run(timer, keep=done >= warmup)
            if progress:
                progress(done + 1, warmup + repeats)
        layers: dict[str, dict[int, Timing]] = {}
        for (key, samples), trial in trials.items():
            layers.setdefault(key, {})[samples] = trial.result()
        step = _step_seconds_per_byte(captured, where, repeats, warmup)
    return _table(captured.graph, device_type or _type_of(where), where, threads, layers, step)


def kinds(graph: BranchGraph) -> dict[str, Layer]:
    """The layers to measure, by their key in the table: the first of each kind."""
    found: dict[str, Layer] = {}
    for layer in graph.layers:
        found.setdefault(kind_of(graph, layer.name), layer)
    return found


def _checked_sizes(given: Sequence[int], global_batch: int | None, repeats: int, warmup: int) -> list[int]:
    sizes = sorted(set(given))
    if not sizes or sizes[0] < 1:
        raise CostError(f"micro-batch sizes: {list(given)} must be numbers of samples, each at least 1")
    if global_batch is not None and global_batch < 1:
        raise CostError(f"global batch: {global_batch} must be at least 1")
    if repeats < 1 or warmup < 0:
        raise CostError(f"repeats: {repeats} must be at least 1; warmup: {warmup} at least 0")
    return sizes


def _check_weights(captured: "Captured") -> None:
    absent = next((name for name, p in captured.model.named_parameters() if p.is_meta), None)
    if absent is not None:
        raise CostError(
            f"{absent} is on the meta device; a profile runs layers, for which weights are needed (plan with a profile "
            "made elsewhere, or for a cluster of devices of the catalog)"
        )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise CostError(f"device: {name!r} is not a device; write cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise CostError(f"device: {name!r} can't be profiled; write cpu, cuda or cuda:1")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise CostError(f"device: {name!r} is not here; PyTorch sees {torch.cuda.device_count()} CUDA devices")
    return device


def _type_of(device: torch.device) -> str:
    return catalog.by_driver_name(torch.cuda.get_device_name(device)) if device.type == "cuda" else LOCAL


def _trials(
    captured: "Captured", example: Mapping[str, Tensor], sizes: Sequence[int], global_batch: int, device: torch.device
) -> dict[tuple[str, int], Trial]:
    """A trial by key and size; layers of batch scope at the global batch alone."""
    graph = captured.graph
    wanted = kinds(graph)
    trials: dict[tuple[str, int], Trial] = {}
    for samples in sorted({*sizes, global_batch}):
        keys = {
            layer.name: key
            for key, layer in wanted.items()
            if (samples == global_batch if layer.scope is Scope.BATCH else samples in sizes)
        }
        batch = {n: _repeated(t, samples, graph.inputs[n].batch_dim).to(device) for n, t in _inputs(graph, example)}
        for name, values in _read_values(captured, batch, keys):
            flowing = tuple(v for v in graph.by_name[name].reads if graph.values[v].gradient)
            trials[keys[name], samples] = Trial(captured.code[name], values, flowing)
    return trials


def _inputs(graph: BranchGraph, example: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    missing = [name for name in graph.inputs if name not in example]
    if missing:
        raise CostError(f"example batch: it lacks the input {missing[0]!r} of {graph.model}")
    return [(name, example[name]) for name in graph.inputs]


def _repeated(tensor: Tensor, samples: int, batch_dim: int | None) -> Tensor:
    """The first ``samples`` samples, begun again from the first where there are fewer."""
    if batch_dim is None:
        return tensor
    count = tensor.shape[batch_dim]
    return tensor.index_select(batch_dim, torch.arange(samples, device=tensor.device) % count)


@torch.no_grad()
def _read_values(
    captured: "Captured", batch: Mapping[str, Tensor], wanted: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """(layer, what it reads) for each wanted layer, from running all layers in order."""
    values = dict(batch)
    for layer in captured.graph.layers:
        read = {name: values[name] for name in (*layer.inputs, *layer.reads)}
        if layer.name in wanted:
            yield layer.name, {name: value.clone() for name, value in read.items()}
        values |= captured.code[layer.name](read)


@contextlib.contextmanager
def _undisturbed(captured: "Captured", device: torch.device, threads: int) -> Iterator[None]:
    """The model on ``device`` with gradients to be filled; afterwards all is as it was."""
    model, codes = captured.model, list(captured.code.values())
    home = home_of(model)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with undisturbed(), weights_cast(captured.graph.precision, model):
            for module in (model, *codes):
                module.to(device)
            for parameter in model.parameters():  # gradients are added up, as over micro-batches
                parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            yield
    finally:
        torch.set_num_threads(before)
        for parameter in model.parameters():
            parameter.grad = None
        for module in (model, *codes):
            module.to(home)
        _restore(captured, gradients, buffers)


@torch.no_grad()
def _restore(captured: "Captured", gradients: Mapping[str, Tensor | None], buffers: Mapping[str, Tensor]) -> None:
    for name, parameter in captured.model.named_parameters():
        parameter.grad = gradients[name]
    for name, buffer in captured.model.named_buffers():
        buffer.copy_(buffers[name])


def _step_seconds_per_byte(captured: "Captured", device: torch.device, repeats: int, warmup: int) -> float:
    shapes: list[torch.Size] = []
    items = 0
    for parameter in captured.model.parameters():
        if parameter.requires_grad and (not shapes or 4 * (items + parameter.numel()) <= OPTIMIZER_BYTES):
            shapes.append(parameter.shape)
            items += parameter.numel()
    if not items:
        return 0.0
    timer = cuda_timer if device.type == "cuda" else cpu_timer
    seconds = optimizer_seconds(shapes, device, timer, repeats=repeats, warmup=warmup)
    return float(f"{seconds / (4 * items):.4g}")


def _table(
    graph: BranchGraph,
    device_type: str,
    device: torch.device,
    threads: int,
    layers: Mapping[str, Sizes],
    step_seconds_per_byte: float,
) -> CostTable:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return CostTable(
        device_type=device_type,
        model=graph.model,
        machine=f"{platform.node()}: {name}",
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        versions={"torch": str(torch.__version__), "python": platform.python_version()},
        threads=threads,
        layers=dict(layers),
        step_seconds_per_byte=step_seconds_per_byte,
    )

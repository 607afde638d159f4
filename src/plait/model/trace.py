"""One export of a model at a fixed number of samples, with its layers opaque.

Every *layer module* stands in the exported graph as one call of ``plait::layer``, so that the graph holds only
the glue between layers, and a stage later calls the user's own module. Parameters are swapped for fake ones
meanwhile: the trace is the same on any device, and on the meta device too.
"""

import contextlib
import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from plait.errors import CaptureError
from plait.model.casting import weights_dtype
from plait.model.explain import explain, no_chance
from plait.model.precision import Precision
from plait.model.restore import HOOKS, split_hooks, unchanged, without_caches
from plait.model.streams import generators_held
from plait.model.unused import run_and_find_unused

_CONSTANTS = (bool, int, float, complex, str, torch.dtype, torch.device, torch.Size, torch.layout, Enum, slice)


_TALKATIVE = ("torch.fx.experimental.symbolic_shapes", "torch.export", "torch._subclasses.fake_tensor")


class Hole:
    """Where a tensor stood among the leaves of a layer's arguments or results."""


HOLE = Hole()


@dataclass
class LayerCall:
    """One call of a layer module: how its arguments and results are made of tensors and constants."""

    path: str
    leaves: list[Any]
    spec: pytree.TreeSpec
    out_leaves: list[Any] = field(default_factory=list)
    out_spec: pytree.TreeSpec | None = None
    unused: frozenset[int] = frozenset()
    """Which of its tensors it does nothing with; it is called with None in their place."""


@dataclass(frozen=True)
class Export:
    """An exported program with the layer calls that its ``plait::layer`` nodes name by number."""

    program: ExportedProgram
    calls: tuple[LayerCall, ...]


@dataclass(frozen=True)
class Question:
    """What to trace: the model's forward, which of its arguments the batch gives, and what is wanted of it."""

    model: nn.Module
    arguments: tuple[str, ...]
    constants: Mapping[str, Any]
    loss: Callable[[Any, Mapping[str, Tensor]], Tensor] | None
    wants_loss: bool
    outputs: tuple[str, ...]


class Asking(nn.Module):
    """Calls the model with a batch and returns (loss or None, outputs asked for)."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.model = question.model
        self._question = question

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor | None, list[Tensor]]:
        """Loss and outputs for ``batch``, a mapping of input names to tensors."""
        asked = self._question
        results = self.model(**{n: batch[n] for n in asked.arguments}, **asked.constants)
        loss = find_loss(results, batch, asked) if asked.wants_loss else None
        return loss, [_output(results, name) for name in asked.outputs]


def find_loss(results: Any, batch: Mapping[str, Tensor], question: Question) -> Tensor | None:
    """The loss of ``results``: the user's callable, else ``.loss``, ``["loss"]`` or a scalar result.

    None where there is none and only outputs are asked for; raises CaptureError.
    """
    loss = question.loss(results, batch) if question.loss is not None else _own_loss(results)
    if loss is None and question.loss is None and question.outputs:
        return None
    if not isinstance(loss, Tensor):
        raise CaptureError(
            f"the model's result ({type(results).__name__}) holds no loss; let it return `.loss`, ['loss'] or a "
            "scalar (Hugging Face: is a label input missing from the batch?), or give loss=callable(outputs, batch)"
        )
    if loss.numel() != 1 or not loss.is_floating_point():
        raise CaptureError(
            f"the loss has shape {tuple(loss.shape)} and dtype {loss.dtype}; it must be one floating-point number "
            "(take the mean)"
        )
    return loss


def _own_loss(results: Any) -> Any:
    if isinstance(results, Mapping):
        return results.get("loss")
    if isinstance(results, Tensor):
        return results if results.dim() == 0 else None
    return getattr(results, "loss", None)


def _output(results: Any, name: str) -> Tensor:
    value = results.get(name) if isinstance(results, Mapping) else getattr(results, name, None)
    if not isinstance(value, Tensor):
        known = list(results.keys()) if isinstance(results, Mapping) else []
        raise CaptureError(f"outputs: the model's result has no tensor {name!r}; it has {known or type(results)}")
    return value


def layer_modules(model: nn.Module, inlined: frozenset[str]) -> dict[str, nn.Module]:
    """Path → module for each maximal module with parameters that holds no list of layers.

    ``inlined`` names modules that cannot be called as a layer; their children are tried instead.
    """
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def walk(module: nn.Module, path: str, repeated: bool) -> None:
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if id(child) in seen:
                continue
            seen.add(id(child))
            element = repeated or (_is_list_of_layers(module) and bool(path))
            if inner not in inlined and _is_layer(child, element):
                found[inner] = child
            else:
                walk(child, inner, element)

    walk(model, "", False)
    return found


def _is_layer(module: nn.Module, element: bool) -> bool:
    if type(module) in (nn.ModuleList, nn.ModuleDict):
        return False  # never called itself
    if _holds_layers(module, element):
        return False
    # A norm that keeps statistics changes its buffers: that stays inside the module, parameters or not.
    keeps = any(isinstance(m, nn.modules.batchnorm._NormBase) for m in module.modules())
    return keeps or next(module.parameters(), None) is not None


def _holds_layers(module: nn.Module, element: bool) -> bool:
    """Whether it holds a list of layers; an element of such a list does only if it is a list of blocks itself.

    A hierarchical encoder's stage is; a transformer block, with a list of linear layers, heads or experts, is not.
    """
    if not element:
        return any(_is_list_of_layers(m) or _repeats_blocks(m) for m in module.modules())
    near = [module, *module.children()]
    return any(_is_list_of_layers(m) and all(_is_composite(x) for x in m.children()) for m in near)


def _repeats_blocks(module: nn.Module) -> bool:
    """Whether it has several blocks of one class, each under a name of its own."""
    kinds = [type(m) for m in module.children() if _is_composite(m) and next(m.parameters(), None) is not None]
    return len(kinds) > len(set(kinds))


def _is_composite(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _is_list_of_layers(module: nn.Module) -> bool:
    """A list that repeats a class with parameters. One of unlike parts, as attention and MLP, is a block's inside."""
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) or len(module) < 2:
        return False
    kinds = [type(m) for m in module.children() if next(m.parameters(), None) is not None]
    return len(kinds) > len(set(kinds)) or (isinstance(module, nn.ModuleDict) and len(kinds) > 1)


class Tracing:
    """The state of one capture's exports: patched layers and their calls. Used as a context manager."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._inlined: frozenset[str] = frozenset()
        self._runs: list[Callable[[Sequence[Tensor]], list[Tensor]]] = []
        self._calls: list[LayerCall] = []
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())

    @property
    def inlined(self) -> frozenset[str]:
        """Paths of modules that are traced through, though they could be layers."""
        return self._inlined

    @inlined.setter
    def inlined(self, paths: frozenset[str]) -> None:
        self._inlined = paths

    def export(self, question: Question, batch: Mapping[str, Tensor]) -> Export:
        """Export ``question`` for a batch of fake tensors; raises CaptureError."""
        while True:
            before = self._inlined
            try:
                return self._export_once(question, batch)
            except CaptureError:
                raise
            except Exception as error:
                # Whatever export refuses (it raises many kinds of errors) becomes ours, unless a layer only
                # turned out not to be callable as one.
                if self._inlined == before:
                    raise explain(error, self._model) from error

    def _export_once(self, question: Question, batch: Mapping[str, Tensor]) -> Export:
        self._calls, self._runs = [], []
        token = _TRACING.set(self)
        try:
            with (
                generators_held(),
                unchanged(self._model),
                without_caches(self._model),
                no_chance(self._model),
                self._patched(),
                _quiet(),
            ):
                program = torch.export.export(Asking(question), (dict(batch),), strict=False)
        finally:
            _TRACING.reset(token)
        return Export(program, tuple(self._calls))

    def run_layer(self, call: int, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Results of layer call number ``call`` on fake tensors."""
        return self._runs[call](inputs)

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        layers = layer_modules(self._model, self._inlined)
        with contextlib.ExitStack() as stack:
            for path, module in layers.items():
                stack.enter_context(_replaced(module, self._outside(path, module)))
            yield

    def _outside(self, path: str, module: nn.Module) -> dict[str, Any]:
        """Attributes of the stand-in. Hooks run with the module itself; around it they would run a second time."""
        outer = {key: OrderedDict(split_hooks(module.__dict__[key])[0]) for key in HOOKS}
        return {"forward": self._stand_in(path, module)} | outer

    def _stand_in(self, path: str, module: nn.Module) -> Callable[..., Any]:
        original: dict[str, Any] = {key: OrderedDict(split_hooks(module.__dict__[key])[1]) for key in HOOKS}
        if "forward" in module.__dict__:
            original["forward"] = module.__dict__["forward"]

        def call_original(inputs: Sequence[Tensor], call: LayerCall) -> list[Tensor]:
            def run(given: Sequence[Tensor | None]) -> Any:
                args, kwargs = pytree.tree_unflatten(fill(call.leaves, given), call.spec)
                return module(*args, **kwargs)

            with _replaced(module, original):
                result, call.unused = run_and_find_unused(run, inputs)
                leaves, call.out_spec = pytree.tree_flatten(result)
            call.out_leaves = [HOLE if isinstance(x, Tensor) else x for x in leaves]
            self._check(path, call.out_leaves)
            return [x.clone() for x in leaves if isinstance(x, Tensor)]

        def forward(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            call = LayerCall(path, [HOLE if isinstance(x, Tensor) else x for x in leaves], spec)
            self._check(path, call.leaves)
            self._calls.append(call)
            self._runs.append(lambda inputs: call_original(inputs, call))
            tensors = layer_call([x for x in leaves if isinstance(x, Tensor)], len(self._calls) - 1)
            if call.out_spec is None:
                raise CaptureError(f"{path}: was not run while it was traced")
            return pytree.tree_unflatten(fill(call.out_leaves, tensors), call.out_spec)

        return forward

    def _check(self, path: str, leaves: Sequence[Any]) -> None:
        for leaf in leaves:
            if leaf is not None and leaf is not HOLE and not isinstance(leaf, _CONSTANTS):
                self._inlined |= {path}
                raise TypeError(f"{path} takes or gives a {type(leaf).__name__}")


_TRACING: ContextVar[Tracing | None] = ContextVar("plait_tracing", default=None)


@torch.library.custom_op("plait::layer", mutates_args=())
def layer_call(inputs: list[Tensor], call: int) -> list[Tensor]:  # noqa: ARG001
    """A layer module's place in an exported graph: tensors in, tensors out."""
    raise CaptureError("plait::layer only stands for a module while a model is captured; it does not compute")


@layer_call.register_fake
def _(inputs: list[Tensor], call: int) -> list[Tensor]:
    tracing = _TRACING.get()
    if tracing is None:
        raise CaptureError("plait::layer is only known while a model is captured")
    return tracing.run_layer(call, inputs)


def fill(leaves: Sequence[Any], tensors: Sequence[Tensor | None]) -> list[Any]:
    """``leaves`` with its holes filled by ``tensors`` in order."""
    rest = iter(tensors)
    return [next(rest) if leaf is HOLE else leaf for leaf in leaves]


@contextlib.contextmanager
def _replaced(module: nn.Module, entries: Mapping[str, Any]) -> Iterator[None]:
    """``module`` with these instance attributes and no other ``forward``; restored afterwards."""
    saved = {key: module.__dict__.pop(key) for key in (*HOOKS, "forward") if key in module.__dict__}
    module.__dict__.update(entries)
    try:
        yield
    finally:
        for key in entries:
            module.__dict__.pop(key, None)
        module.__dict__.update(saved)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without export's warnings and logs about its own inner workings: errors are told in the model's terms."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    disabled = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, flag in zip(loggers, disabled, strict=True):
            logger.disabled = flag


@contextlib.contextmanager
def fake_weights(model: nn.Module, mode: FakeTensorMode, precision: Precision = Precision.FP32) -> Iterator[None]:
    """The model with fake parameters and buffers on a fake CPU, in training mode; restored afterwards.

    What is one tensor under several names stays one.
    """
    fakes: dict[int, Tensor] = {}
    saved: list[tuple[dict[str, Any], str, Tensor]] = []
    flags = [(m, m.training, m.__dict__.get("gradient_checkpointing")) for m in model.modules()]
    try:
        model.train()
        for module in model.modules():
            if "gradient_checkpointing" in module.__dict__:
                module.__dict__["gradient_checkpointing"] = False  # plait recomputes by itself
            stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for store in stores:
                for name, tensor in store.items():
                    if tensor is not None:
                        saved.append((store, name, tensor))
                        store[name] = fakes.setdefault(id(tensor), _fake(tensor, mode, precision))
        yield
    finally:
        for store, name, tensor in saved:
            store[name] = tensor
        for module, training, checkpointing in flags:
            module.training = training
            if checkpointing is not None:
                module.__dict__["gradient_checkpointing"] = checkpointing


def _fake(tensor: Tensor, mode: FakeTensorMode, precision: Precision) -> Tensor:
    dtype = weights_dtype(precision, tensor.dtype)
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

"""Why a model can't be traced, in its own terms: which module, which line or setting of it, and what to do."""

import linecache
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np
from torch import fx, nn

from plait.errors import CaptureError
from plait.theirs import first_line

_LINES = 8
"""Lines up to the failing one in which a random draw is looked for."""
_TORCH_TRACER = Path(fx.__file__).parent
_DRAW = re.compile(r"\b(rand|random|bernoulli|uniform)\b")
_SETTING = re.compile(r"\bself((?:\.[A-Za-z_]\w*)+)")
_SKIPS = re.compile(r"layer_?drop|drop_?path|skip_prob|stochastic_depth", re.IGNORECASE)


def explain(error: Exception, model: nn.Module) -> CaptureError:
    """``error``, which export raised, as a CaptureError."""
    place = _place(error, model)
    if place is None:
        return CaptureError(f"{type(model).__name__}: cannot be traced: {_reason(error)}. {_advice(error)}")
    module, frame, line, where = place
    if (chance := _chance(frame.f_code, line)) is not None:
        return CaptureError(_random(where, [*_named(module, chance), *_settings(module)][:1]))
    return CaptureError(f"{where}: cannot be traced: {_reason(error)}. {_advice(error)}")


def module_at(error: BaseException, model: nn.Module) -> str | None:
    """The innermost module whose code raised ``error``, with file and line; None where it was none's."""
    place = _place(error, model)
    return None if place is None else place[3]


def _place(error: BaseException, model: nn.Module) -> tuple[nn.Module, FrameType, int, str] | None:
    """The innermost module, its frame and line, and these in words."""
    paths = {id(m): path for path, m in model.named_modules()}
    place: tuple[nn.Module, FrameType, int, str] | None = None
    traceback: TracebackType | None = error.__traceback__
    while traceback is not None:
        frame, line = traceback.tb_frame, traceback.tb_lineno
        first = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
        file = Path(frame.f_code.co_filename)
        if isinstance(first, nn.Module) and id(first) in paths and not _is_between(file):
            name = paths[id(first)] or type(model).__name__
            place = (first, frame, line, f"{name} ({file.name}:{line})")
        traceback = traceback.tb_next
    return place


def _is_between(file: Path) -> bool:
    """Whether frames of this file have a module at hand without being its code."""
    own = (Path(nn.modules.module.__file__), Path(__file__).with_name("rehearse.py"))
    return file in own or file.is_relative_to(_TORCH_TRACER)


_VALUES = (
    "The code must not decide by the values of tensors: write it with tensor operations such as torch.where, or "
    "describe the model's branches by hand (plait.Branches), whose parts are called as they are"
)
_MEMORY = (
    "Tensors have no memory while a model is traced: keep to torch's operations, or describe the model's branches by "
    "hand (plait.Branches), whose parts are called as they are"
)
_ADVICES = (
    (r"numpy|data pointer", _MEMORY),
    (r"leaf Variable", "A parameter must not be changed in place: use a buffer, or compute a new tensor"),
    (r"data-dependent|zuf\d|\bu\d", _VALUES),
)  # fmt: skip


def _advice(error: Exception) -> str:
    found = next((advice for pattern, advice in _ADVICES if re.search(pattern, str(error))), None)
    if found is None and isinstance(error, (ValueError, KeyError, AttributeError, IndexError)):
        return "The model's own code raises this: is the batch as it expects it?"
    return found or _VALUES


def _reason(error: Exception) -> str:
    return first_line(error)[:300]


def _random(where: str, settings: list[str]) -> str:
    what = f"the setting {settings[0]} skips layers" if settings else "it draws random numbers and decides by them,"
    return (
        f"{where}: {what} at random; which layers run must be the same at every step and on every rank. Set "
        f"{settings[0].partition(' = ')[0] if settings else 'the probability'} to 0 (a model of transformers: in its "
        "config, before the model is made)"
    )


def _chance(code: CodeType, line: int) -> list[str] | None:
    """The lines from a random draw to ``line``; None where there is no draw shortly before it."""
    first = max(code.co_firstlineno + 1, line - _LINES)
    lines = [linecache.getline(code.co_filename, number) for number in range(first, line + 1)]
    drawn = [index for index, text in enumerate(lines) if _DRAW.search(text)]
    return lines[max(0, drawn[-1] - 1) :] if drawn else None


def _named(module: nn.Module, lines: list[str]) -> Iterator[str]:
    """The module's probabilities that ``lines`` name, with their values."""
    for path in dict.fromkeys(found for text in lines for found in _SETTING.findall(text)):
        value: Any = module
        for part in path.split(".")[1:]:
            value = getattr(value, part, None)
        if isinstance(value, float) and 0 < value <= 1:
            yield f"{path[1:]} = {value}"


def _settings(module: nn.Module) -> Iterator[str]:
    """Probabilities of skipping a layer among the module's attributes and its config's, by their usual names."""
    config = getattr(module, "config", None)
    for prefix, holder in (("", module), ("config.", config)):
        for name, value in getattr(holder, "__dict__", {}).items():
            if _SKIPS.search(name) and isinstance(value, float) and 0 < value <= 1:
                yield f"{prefix}{name} = {value}"


def _host_state() -> tuple[Any, ...]:
    drawn = np.random.get_state(legacy=False)
    return random.getstate(), drawn["state"]["key"].tobytes(), drawn["state"]["pos"], drawn["has_gauss"]


@contextmanager
def no_chance(model: nn.Module) -> Iterator[None]:
    """Raise CaptureError where the model's code draws from ``random`` or numpy meanwhile; their states are restored.

    Such draws leave no trace: the one path that was taken would be trained always, or another one on each rank.
    """
    host, drawn = random.getstate(), np.random.get_state(legacy=False)
    last = _host_state()
    drew: list[nn.Module] = []
    stack: list[nn.Module] = []

    def look() -> None:
        nonlocal last
        state = _host_state()
        if state != last:
            drew.extend(stack[-1:])
        last = state

    def enter(module: nn.Module, _: Any) -> None:
        look()
        stack.append(module)

    def leave(module: nn.Module, _: Any, __: Any) -> None:
        look()
        while stack and stack.pop() is not module:
            pass

    before = nn.modules.module.register_module_forward_pre_hook(enter)
    after = nn.modules.module.register_module_forward_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()
        random.setstate(host)
        np.random.set_state(drawn)
    paths = {id(m): path for path, m in model.named_modules()}
    for module in drew:
        if id(module) in paths:
            raise CaptureError(_random(paths[id(module)] or type(model).__name__, list(_settings(module))[:1]))

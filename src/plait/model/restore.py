"""Keeps a model as it was while it is traced and tried."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOK_FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
_COLLECTORS = "transformers.utils.output_capturing"


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restores what the model's own code changes while it runs: attributes (caches of fake tensors!) and hooks.

    Parameters and buffers are not looked after here.
    """
    attributes = [(module, dict(module.__dict__)) for module in model.modules()]
    hooks = [(found[key], dict(found[key])) for _, found in attributes for key in (*HOOKS, *_HOOK_FLAGS)]
    try:
        yield
    finally:
        for module, saved in attributes:
            module.__dict__.clear()
            module.__dict__.update(saved)
        for store, content in hooks:
            store.clear()
            store.update(content)


@contextlib.contextmanager
def without_caches(model: nn.Module) -> Iterator[None]:
    """Every configuration in the model says ``use_cache=False``; restored afterwards.

    Caches of keys and values serve generation; they are objects that layers would hand each other.
    """
    configs: dict[int, Any] = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    saved = [(config, config.use_cache) for config in configs.values() if hasattr(config, "use_cache")]
    try:
        for config, _ in saved:
            config.use_cache = False
        yield
    finally:
        for config, flag in saved:
            config.use_cache = flag


def is_collector(hook: Any) -> bool:
    """Whether a hook belongs to the glue: it hands a layer's result to the model's own code, as transformers' do."""
    return getattr(hook, "__module__", "") == _COLLECTORS


def split_hooks(hooks: Mapping[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
    """(hooks that belong to the glue around a layer, hooks that belong to the layer)."""
    outer = {key: hook for key, hook in hooks.items() if is_collector(hook)}
    return outer, {key: hook for key, hook in hooks.items() if key not in outer}

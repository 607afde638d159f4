"""Packages that can be called: ``plait.plan(...)`` is a function and ``plait.plan.search`` a module in it."""

import importlib
import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """A package whose call is a function in one of its modules, loaded when first called."""

    _function: tuple[str, str]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the package's function."""
        module, name = self._function
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


def make_callable(package: str, module: str, name: str) -> None:
    """Let a call of ``package`` be a call of ``name`` in ``module``.

    Importing a submodule puts the package in the place of a function of the same name, as Python does; so the package
    itself must be callable.
    """
    found = sys.modules[package]
    found.__class__ = CallablePackage
    found._function = (module, name)  # type: ignore[attr-defined]  # noqa: SLF001

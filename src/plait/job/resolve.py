"""``module:name`` in a job file: looked for beside the file first, then among the installed packages."""

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from plait.errors import FileError, PlaitError
from plait.theirs import is_theirs, said


def resolve(reference: str, folder: Path, where: str) -> Any:
    """What ``reference`` names; ``where`` (file and field) begins every message. Raises FileError."""
    module_name, _, name = reference.partition(":")
    module = _module(module_name, folder, where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise FileError(f"{where}: {module_name} ({_place(module)}) has no {name!r}{_hint(module, name)}")
        found = getattr(found, part)
    if not callable(found):
        raise FileError(f"{where}: {reference} is of type {type(found).__name__}; a function or class is needed")
    return found


@contextmanager
def theirs(where: str, name: str, kind: type[PlaitError] = FileError) -> Iterator[None]:
    """The user's own code runs here: what it raises becomes a ``kind`` that says in which line of theirs."""
    try:
        yield
    except PlaitError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{where}: {name} raised {said(error)}") from error


def call(function: Callable[..., Any], options: Mapping[str, Any], where: str, *first: Any) -> Any:
    """``function(*first, **options)``; raises FileError where it has no such options, or with what it raises."""
    check_options(function, options, where, first=len(first))
    with theirs(where, _name(function)):
        try:
            return function(*first, **options)
        except (TypeError, ValueError) as error:
            if is_theirs(traceback.extract_tb(error.__traceback__)[-1].filename):
                raise
            raise FileError(f"{where}: {_name(function)} refuses its options: {error}") from error


def with_given(function: Callable[..., Any], options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """``options``, and of ``given`` those that ``function`` asks for by name and ``options`` leave out."""
    try:
        asked = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-ins tell nothing of their parameters
        return dict(options)
    return {name: value for name, value in given.items() if name in asked} | dict(options)


def check_options(function: Callable[..., Any], options: Mapping[str, Any], where: str, *, first: int = 0) -> None:
    """Raise FileError unless ``function`` takes all ``options`` after its ``first`` arguments, and lacks none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some built-ins tell nothing of their parameters
        return
    named = [(n, p) for n, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    known = dict(named[first:])
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    wrong = [name for name in options if name not in known]
    if wrong and not anything:
        raise FileError(f"{where}: {_name(function)} has no option {wrong[0]!r}; it has {', '.join(known) or 'none'}")
    missing = [n for n, p in known.items() if p.default is p.empty and n not in options]
    if missing:
        raise FileError(f"{where}: {_name(function)} needs the option {missing[0]!r}")


def _module(name: str, folder: Path, where: str) -> ModuleType:
    beside = folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        return _from_file(name, beside) if beside.is_file() else importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if beside.is_file() or not (name == missing or name.startswith(f"{missing}.")):
            raise FileError(f"{where}: {name} needs the module {missing}, which is not installed") from None
        raise FileError(f"{where}: no module {name!r}: neither {beside} nor an installed package") from None
    except PlaitError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's own file raises as it is read
        raise FileError(f"{where}: {name} cannot be imported: {said(error)}") from error


def _from_file(name: str, file: Path) -> ModuleType:
    """The module in ``file``, read once. Its own folder is searched first, so that it can import its neighbours."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(file):
        return known
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "built in"


def _hint(module: ModuleType, name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
    return f"; is {close[0]!r} meant?" if close else ""


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)

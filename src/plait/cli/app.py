"""The application: its commands, and what happens when one fails."""

import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

import typer

from plait.errors import PlaitError

COMMANDS = (
    "demo", "capture", "profile", "plan", "verify", "simulate", "train", "evaluate", "report", "schema",
)  # fmt: skip

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as shells have it."""

app = typer.Typer(
    name="plait",
    help="Trains concurrent-branch models on mixed accelerators in several places.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _plait() -> None:
    """Trains concurrent-branch models on mixed accelerators in several places."""


for _name in COMMANDS:
    _module = importlib.import_module(f"plait.cli.{_name}")
    app.command(_name)(_module.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code: no error shows as a traceback."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """The exit code of a command line."""
    try:
        code = app(args=None if arguments is None else list(arguments), standalone_mode=False)
    except PlaitError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        return _fail("ended on request", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `plait ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _usage(error) if hasattr(error, "exit_code") else _unexpected(error)
    if code == INTERRUPTED:  # how typer hands on Ctrl-C
        return _fail("ended on request", INTERRUPTED)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int = 1) -> int:
    sys.stdout.flush()
    print(f"plait: {message}", file=sys.stderr, flush=True)  # noqa: T201
    return code


def _usage(error: Exception) -> int:
    """An option that typer refuses: its own message and exit code (2)."""
    show = getattr(error, "show", None)
    if show is not None:
        show()
    return int(getattr(error, "exit_code", 2))


def _unexpected(error: Exception) -> int:
    handle, path = tempfile.mkstemp(prefix="plait-error-", suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        traceback.print_exception(error, file=file)
    return _fail(f"{type(error).__name__}: {error}\n(not an error plait knows; the traceback is in {path})")

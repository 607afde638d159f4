"""The user's own code: what it raises, told in a line with the place it came from."""

import sysconfig
import traceback
from pathlib import Path

_NOT_THEIRS = tuple({Path(__file__).parent, *(Path(p) for p in sysconfig.get_paths().values())})


def said(error: BaseException) -> str:
    """The error's kind and first line, and the user's line that it came from, if it came from one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_theirs(f.filename)]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])[:300] + place


def first_line(error: BaseException) -> str:
    """The first line of what an error says, its kind where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_theirs(filename: str) -> bool:
    """Whether a file is neither plait's nor an installed package's."""
    file = Path(filename)
    return file.is_file() and not any(file.is_relative_to(root) for root in _NOT_THEIRS)

"""From what the ranks of a failed run left behind: the first cause, once, and who waited for whom."""

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.files import read_text

_FOLLOWS = re.compile(r"waited|could not (send to|hear from)|has gone")
"""Errors that only follow from another rank's end."""
_FAILED = re.compile(r"rank\s*:\s*(\d+) \(local_rank.*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_WAITED = re.compile(r"^plait: (rank \d+ was .*) when it was told to end$", re.MULTILINE)


@dataclass(frozen=True)
class Note:
    """What a rank wrote before it ended."""

    rank: int
    time: float
    kind: str
    expected: bool
    message: str

    @property
    def follows(self) -> bool:
        """Whether it is only the consequence of another rank's end."""
        return self.kind == "RunError" and bool(_FOLLOWS.search(self.message))

    @property
    def text(self) -> str:
        """The message, with the rank named once."""
        return self.message if self.message.startswith(f"rank {self.rank}") else f"rank {self.rank}: {self.message}"


def explain(folder: Path, code: int) -> str:
    """What to tell the user of a run that ended with ``code``; ``folder`` is the run's ``errors``."""
    notes = _notes(folder)
    waits = [wait for file in sorted(folder.rglob("stderr.log")) for wait in _WAITED.findall(read_text(file))]
    first = next((note for note in notes if not note.follows), None)
    if first is not None:
        detail = "" if first.expected else f"\n(traceback in {folder / f'rank-{first.rank}.json'})"
        return _with_waits(_common(first, notes) + detail, notes, waits)
    killed = _killed(folder)
    if killed:
        return _with_waits(killed, notes, waits)
    if notes:
        return _with_waits(notes[0].text, notes[1:], waits)
    return f"the processes ended with code {code} and left no message; their output is in {folder}{_last_line(folder)}"


def _notes(folder: Path) -> list[Note]:
    """By time."""
    found = [json.loads(read_text(file)) for file in folder.glob("rank-*.json")]
    notes = [Note(d["rank"], d["time"], d["kind"], d["expected"], d["message"]) for d in found]
    return sorted(notes, key=lambda note: note.time)


def _common(first: Note, notes: Sequence[Note]) -> str:
    """The message alone where all ranks say the same, as of a wrong file."""
    alike = [note for note in notes if note.message == first.message]
    return first.message if len(alike) > 1 else first.text


def _killed(folder: Path) -> str:
    """Ranks that ended without a word, as torchrun saw them."""
    log = folder / "torchrun.txt"
    root = read_text(log).rpartition("Root Cause")[2] if log.exists() else ""
    match = _FAILED.search(root)
    if match is None:
        return ""
    rank, code = int(match.group(1)), int(match.group(2))
    if (folder / f"rank-{rank}.json").exists():
        return ""
    ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with code {code}"
    return f"rank {rank} {ended} and could not say why{_last_line(folder, rank)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(folder: Path, rank: int | None = None) -> str:
    """The last line that the rank, or torchrun, wrote to its standard error."""
    files = [folder / "torchrun.txt"] if rank is None else sorted(folder.rglob(f"{rank}/stderr.log"))
    lines = [line for file in files if file.exists() for line in read_text(file).splitlines() if line.strip()]
    return f"; its last line: {lines[-1].strip()}" if lines else ""


def _with_waits(cause: str, notes: Sequence[Note], waits: Sequence[str]) -> str:
    """The cause and, indented, who waited for whom."""
    others = list(dict.fromkeys([note.text for note in notes if note.follows] + list(waits)))
    return "\n".join([cause, *(f"  {line}" for line in others if line not in cause)])

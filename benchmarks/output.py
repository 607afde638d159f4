"""What every benchmark shares: its options, and the form of its JSON."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Target:
    """One figure that must be reached; ``measured`` and ``target`` carry the same unit, named in ``name``."""

    name: str
    target: float
    measured: float
    met: bool


def options(description: str) -> argparse.ArgumentParser:
    """A parser with ``--quick`` and ``--json``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a part of the measurements, in under a minute")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write targets and rows there")
    return parser


def write(path: Path | None, targets: Sequence[Target], rows: Sequence[Mapping[str, Any]]) -> None:
    """The JSON file, if one is asked for."""
    if path is not None:
        content = {"targets": [asdict(t) for t in targets], "rows": [dict(r) for r in rows]}
        path.write_text(json.dumps(content, indent=2) + "\n")

"""The folder of a run: what ``plait train`` writes and ``plait report`` and ``plait evaluate`` read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.errors import FileError
from plait.files import read_text, write_text


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run's folder, and its small JSON files."""

    root: Path

    @property
    def job(self) -> Path:
        """The job as it was run."""
        return self.root / "job.yaml"

    @property
    def plan(self) -> Path:
        """The plan as it was run."""
        return self.root / "plan.yaml"

    @property
    def predicted(self) -> Path:
        """The predicted timeline of a step."""
        return self.root / "predicted.json"

    @property
    def measured(self) -> Path:
        """The measured timeline of a typical late step."""
        return self.root / "measured.json"

    @property
    def log(self) -> Path:
        """A line of JSON per step."""
        return self.root / "log.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints, ``step-N`` each."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """The final weights, as ``from_pretrained`` reads them."""
        return self.root / "model"

    @property
    def summary(self) -> Path:
        """Figures of the run."""
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        """The page that shows both timelines."""
        return self.root / "report.html"

    @property
    def trace(self) -> Path:
        """Both timelines for Perfetto."""
        return self.root / "trace.json"

    @property
    def errors(self) -> Path:
        """What each failing rank said, and its output."""
        return self.root / "errors"

    def read_log(self) -> list[dict[str, Any]]:
        """The log's lines; a step that was run twice (after a resume) counts as it was run last."""
        if not self.log.exists():
            return []
        rows: dict[int, dict[str, Any]] = {}
        for number, line in enumerate(read_text(self.log).splitlines(), 1):
            try:
                row = json.loads(line)
                rows[int(row["step"])] = row
            except (ValueError, KeyError, TypeError):
                raise FileError(f"{self.log}: line {number} is not a step of a log") from None
        return [rows[step] for step in sorted(rows)]

    def read_summary(self) -> dict[str, Any]:
        """The figures; none where the run has not ended."""
        if not self.summary.exists():
            return {}
        try:
            found = json.loads(read_text(self.summary))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise FileError(f"{self.summary}: not a mapping of figures in JSON")
        return found

    def write_summary(self, figures: Mapping[str, Any]) -> None:
        """Write the figures, those known before kept."""
        write_text(self.summary, json.dumps(self.read_summary() | dict(figures), indent=1) + "\n")

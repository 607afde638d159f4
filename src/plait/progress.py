"""What rank 0 shows while it trains: a bar on a terminal, now and then a line elsewhere."""

import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from plait.job.job import Job
from plait.plan.plan import Plan
from plait.units import show_seconds

LINES = 10
"""Lines that a run shows where there is no terminal."""


class Progress:
    """Step, loss, samples per second, predicted and measured step time."""

    def __init__(self, job: Job, plan: Plan, *, shown: bool) -> None:
        self._steps, self._batch = job.steps, plan.global_batch
        self._predicted = show_seconds(plan.predicted.step_time) if plan.predicted else "unknown"
        self._console = Console(file=sys.stdout, quiet=not shown, width=None if sys.stdout.isatty() else 120)
        self._bar: Bar | None = None
        self._smooth: float | None = None
        if shown and self._console.is_terminal:
            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(20), TextColumn("{task.description}"))
            self._bar = Bar(*columns, TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task("", total=job.steps)

    def update(self, row: Mapping[str, Any]) -> None:
        """Show a step of the log."""
        step, seconds = int(row["step"]), float(row["step_seconds"])
        self._smooth = seconds if self._smooth is None else 0.9 * self._smooth + 0.1 * seconds
        rate = self._batch / (self._smooth + float(row["data_seconds"]))
        text = (
            f"{row.get('task', '')} loss {row['loss']:.4f}  {rate:.0f} samples/s  step {show_seconds(self._smooth)}, "
            f"predicted {self._predicted}"
        ).lstrip()
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=text)
        elif step in (1, self._steps) or not step % max(1, self._steps // LINES):
            self._console.print(f"step {step}/{self._steps}  {text}", highlight=False)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

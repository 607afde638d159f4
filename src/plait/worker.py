"""One rank's process, as torchrun starts it: ``python -m plait.worker train|evaluate JOB PLAN RUN``.

What goes wrong is written to ``RUN/errors/rank-N.json``, where the launcher finds the first cause.
"""

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from plait.errors import PlaitError
from plait.files import write_text
from plait.job.folder import RunFolder
from plait.job.job import Job
from plait.job.tasks import file_of, jobs_of
from plait.plan.plan import Plan


@dataclass(frozen=True)
class Task:
    """What the processes of a run are to do, as arguments of this module."""

    verb: str
    job: Path
    plan: Path
    run: Path
    resume: bool = False
    paced: bool = False

    def arguments(self) -> list[str]:
        """Command-line arguments that ``parse`` reads back."""
        switches = ["--resume"] * self.resume + ["--paced"] * self.paced
        return [self.verb, str(self.job), str(self.plan), str(self.run), *switches]

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> "Task":
        """The task that ``arguments`` gives."""
        parser = argparse.ArgumentParser(prog="plait.worker", description=__doc__)
        parser.add_argument("verb", choices=("train", "evaluate"))
        for name in ("job", "plan", "run"):
            parser.add_argument(name, type=Path)
        parser.add_argument("--resume", action="store_true")
        parser.add_argument("--paced", action="store_true")
        return cls(**vars(parser.parse_args(arguments)))


def run(task: Task) -> None:
    """Do this rank's part; raises what went wrong."""
    from plait.training import evaluate_weights, train

    warnings.filterwarnings("ignore", category=FutureWarning)
    job, folder = Job.load(task.job), RunFolder(task.run)
    plans = {name: Plan.load(file_of(task.plan, name)) for name in jobs_of(job)}
    if task.verb == "train":
        train(job, plans, folder, resume=task.resume, paced=task.paced)
    else:
        evaluate_weights(job, plans, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as torchrun's process; the exit code."""
    task = Task.parse(sys.argv[1:] if arguments is None else arguments)
    try:
        run(task)
    except Exception as error:  # the border of the process: everything is reported
        note_failure(task.run, error)
        traceback.print_exc()
        return 1
    return 0


def note_failure(run_folder: Path, error: Exception) -> None:
    """Write down what this rank raised, and when."""
    rank = os.environ.get("RANK", "0")
    expected = isinstance(error, PlaitError)
    found = {
        "rank": int(rank),
        "time": time.time(),
        "kind": type(error).__name__,
        "expected": expected,
        "message": str(error) if expected else f"{type(error).__name__}: {error}",
        "traceback": traceback.format_exc(),
    }
    write_text(RunFolder(run_folder).errors / f"rank-{rank}.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())

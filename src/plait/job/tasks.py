"""Tasks that alternate: whose turn it is at a step, each task as a job of its own, and where its files are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plait.job.job import Job


def jobs_of(job: Job) -> dict[str, Job]:
    """Each task as a job with that task's data, loss and evaluation; the job itself under "" where it has no tasks."""
    if not job.tasks:
        return {"": job}
    return {name: job.of_task(name) for name in job.tasks}


def main_task(job: Job) -> str:
    """The task that a run's report shows: the one with the most turns, the first of equals; "" without tasks."""
    return max(job.tasks, key=lambda name: job.tasks[name].turns, default="")


def file_of(path: Path, task: str) -> Path:
    """Where a task's part of ``path`` is: ``plan.yaml`` is ``plan.image.yaml`` for the task ``image``."""
    return path.with_name(f"{path.stem}.{task}{path.suffix}") if task else path


@dataclass(frozen=True)
class Turns:
    """The tasks' turns: a round of as many steps as they have turns altogether, each task's spread over it evenly."""

    round: tuple[str, ...]

    @classmethod
    def of(cls, turns: Mapping[str, int]) -> "Turns":
        """The round for so many turns a task."""
        total = sum(turns.values())
        places = [((turn + 0.5) * total / count, name) for name, count in turns.items() for turn in range(count)]
        return cls(tuple(name for _, name in sorted(places, key=lambda place: place[0])))

    def at(self, step: int) -> tuple[str, int]:
        """(whose turn it is at ``step``, how many turns it had before), both counted from 0."""
        rounds, place = divmod(step, len(self.round))
        task = self.round[place]
        return task, rounds * self.round.count(task) + self.round[:place].count(task)


def turns_of(job: Job) -> Turns:
    """The turns of a job's tasks; every turn is "" where it has none."""
    return Turns.of({name: task.turns for name, task in job.tasks.items()} or {"": 1})

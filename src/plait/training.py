"""The training loop that ``plait train`` runs on every rank: steps, log, checkpoints, evaluation, final weights."""

import json
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TextIO

import torch
from torch import Tensor

from plait.errors import CheckpointError, FileError, RunError
from plait.job.data import Data, data_of
from plait.job.feed import Fed, Position
from plait.job.folder import RunFolder
from plait.job.job import Job
from plait.job.metric import check_metrics, figures_of
from plait.job.model import branches_of, loss_of, model_of
from plait.job.rates import scheduler_of
from plait.job.resolve import theirs
from plait.job.tasks import Turns, jobs_of, main_task, turns_of
from plait.job.update import optimizer_of
from plait.model.streams import generators_held
from plait.plan.plan import Plan
from plait.progress import Progress
from plait.runtime import checkpoint
from plait.runtime.batch import Portion
from plait.runtime.engine import Engine
from plait.simulate.timeline import Timeline

GATHERED = 12
"""Measured timelines that are looked at; the one nearest to the median step is kept."""
UNPACED_STEPS = 5
"""Steps that a paced run adds at full speed, on a copy of the weights, to show the model's true speed."""


def engine_of(
    job: Job, plans: Mapping[str, Plan], *, paced: bool, training: bool = True, weights: str | None = None
) -> Engine:
    """The engine of this rank."""
    folder = weights or (str(job.beside(job.weights)) if job.weights is not None else None)
    model = model_of(job, late=True)
    return Engine(
        model,
        plans,
        optimizer=optimizer_of(job) if training else None,
        scheduler=scheduler_of(job) if training else None,
        loss={name: loss_of(one) for name, one in jobs_of(job).items()},
        max_grad_norm=job.max_grad_norm,
        seed=job.seed,
        paced=paced,
        timeout=job.timeout,
        precision=job.precision,
        lengths=job.lengths,
        weights=folder,
        branches={name: branches_of(one, model) for name, one in jobs_of(job).items()},
    )


Positions = Mapping[str, Position]
"""Where the data of each task stand."""


class Turn(NamedTuple):
    """A step's task and its global batch, and where the data stand after it."""

    task: str
    batch: Mapping[str, Any] | Portion
    after: Positions


@dataclass(frozen=True)
class InTurn:
    """The batches of a job's steps, each of the task whose turn it is."""

    turns: Turns
    data: Mapping[str, Data]

    def batches(self, step: int, positions: Positions, engine: Engine) -> Iterator[Turn]:
        """What ``engine`` reads of the batches from a step on; ``positions`` is where the data stood before it."""
        positions = dict(positions)
        sources: dict[str, Iterator[Fed]] = {}
        while True:
            task, number = self.turns.at(step)
            if task not in sources:
                read = partial(engine.positions, task=task)
                sources[task] = self.data[task].batches(number, positions.get(task), read)
            batch, positions[task] = next(sources[task])
            yield Turn(task, batch, dict(positions))
            step += 1


class Ahead:
    """The batches of consecutive steps, each made in a thread while the step before it runs."""

    def __init__(self, batches: Iterator[Turn], count: int) -> None:
        self._batches, self._left = batches, count
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._next = self._begin()

    def _begin(self) -> "Future[Turn] | None":
        self._left -= 1
        return self._pool.submit(self._made) if self._left >= 0 else None

    def _made(self) -> Turn:
        with generators_held():
            return next(self._batches)

    def take(self) -> Turn:
        """The next step's batch; raises what the data raised."""
        if self._next is None:
            raise RunError("there is no batch after the last step's")
        turn = self._next.result()
        self._next = self._begin()
        return turn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


@dataclass
class Training:
    """One rank's part in a run."""

    job: Job
    plans: Mapping[str, Plan]
    folder: RunFolder
    engine: Engine
    data: InTurn
    paced: bool
    positions: Positions = field(default_factory=dict)
    """Where the data stand after the last step."""
    recent: deque[Turn] = field(default_factory=lambda: deque(maxlen=UNPACED_STEPS))
    seconds: list[float] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)

    @property
    def first(self) -> bool:
        """Whether this is the rank that logs."""
        return self.engine.rank == 0

    def run(self) -> None:
        """Train to the last step, evaluate, and write what the run's folder holds."""
        began, begun = time.perf_counter(), self.engine.step_number
        with (
            self._log() as log,
            Progress(self.job, self.plans[main_task(self.job)], shown=self.first) as progress,
            Ahead(self.data.batches(begun, self.positions, self.engine), self.job.steps - begun) as batches,
        ):
            while self.engine.step_number < self.job.steps:
                row = self._step(batches)
                progress.update(row)
                if log is not None:
                    log.write(json.dumps(row) + "\n")
                self._after_step()
        spent = time.perf_counter() - began
        self._finish(spent)

    def _step(self, batches: "Ahead") -> dict[str, Any]:
        step = self.engine.step_number
        rates = [g["lr"] for g in self.engine.optimizer.param_groups] if self.engine.optimizer else [0.0]
        asked = time.perf_counter()
        turn = batches.take()
        task, batch, self.positions = turn
        self.recent.append(turn)
        began = time.perf_counter()
        loss = self.engine.step(batch, task)
        seconds = time.perf_counter() - began
        if task == main_task(self.job):
            self.seconds.append(seconds)
        return {
            "step": step + 1,
            **({"task": task} if task else {}),
            "loss": loss,
            "step_seconds": seconds,
            "data_seconds": began - asked,
            "lr": rates[0],
            "grad_norm": self.engine.outcome.norm,
        }

    def _after_step(self) -> None:
        done, every = self.engine.step_number, self.job.checkpoint.every
        if self._is_looked_at(done):
            timeline = self.engine.timeline()
            self.timelines += [timeline] if timeline is not None else []
        if done == self.job.steps or (every and not done % every):
            self.engine.save_checkpoint(self.folder.checkpoints, keep=self.job.checkpoint.keep, data=self.positions)

    def _is_looked_at(self, done: int) -> bool:
        """In the last third of the run, now and then, where it is a step of the task that the report shows."""
        task, turn = self.data.turns.at(done - 1)
        third = max(GATHERED, self.job.steps // 3)
        late = self.job.steps - done < third
        return late and task == main_task(self.job) and not turn % max(1, third // GATHERED)

    @contextmanager
    def _log(self) -> Iterator[TextIO | None]:
        if not self.first:
            yield None
            return
        try:
            with open(self.folder.log, "a" if self.engine.step_number else "w", encoding="utf-8", buffering=1) as file:
                yield file
        except OSError as error:
            raise FileError(f"{self.folder.log}: cannot write: {error.strerror or error}") from None

    def _finish(self, spent: float) -> None:
        figures: dict[str, Any] = {"steps": self.engine.step_number, "paced": self.paced, "train_seconds": spent}
        figures["skipped_steps"] = self.engine.skipped_steps
        if self.seconds:
            figures["step_seconds"] = statistics.median(self.seconds)
        if self.timelines:
            typical = nearest(self.timelines, statistics.median(t.step_time for t in self.timelines))
            typical.save(self.folder.measured)
            figures["measured_step_time"] = typical.step_time
            figures["measured_bubble_ratio"] = typical.bubble_ratio
        self.engine.save_pretrained(self.folder.model)
        if self.first:
            self.folder.write_summary(figures)  # kept should the evaluation fail
        figures |= evaluate(self.job, self.engine, with_metric(self.job, self.data.data))
        if self.paced and self.recent:
            figures["unpaced_step_seconds"] = self._true_speed()
        if self.first:
            self.folder.write_summary(figures)

    def _true_speed(self) -> float:
        """Seconds of a step that waits for nothing but the work itself. The weights are written before."""
        self.engine.pace(False)
        found = []
        for task, batch, _ in self.recent:
            began = time.perf_counter()
            self.engine.step(batch, task)
            found.append(time.perf_counter() - began)
        return statistics.median(found)


def with_metric(job: Job, data: Mapping[str, Data]) -> dict[str, Data]:
    """The data of the tasks that have a metric: only these are evaluated when training ends."""
    jobs = jobs_of(job)
    return {name: source for name, source in data.items() if jobs[name].evaluate is not None}


def nearest(timelines: list[Timeline], seconds: float) -> Timeline:
    """The timeline whose step time is nearest to ``seconds``."""
    return min(timelines, key=lambda t: abs(t.step_time - seconds))


def train(job: Job, plans: Mapping[str, Plan], folder: RunFolder, *, resume: bool, paced: bool) -> None:
    """Run the job on this rank, from the newest whole checkpoint if ``resume``.

    Raises PlaitError subclasses where job, plan and data do not suit each other or another rank failed.
    """
    for plan in plans.values():
        if plan.global_batch != job.global_batch:
            raise RunError(
                f"the plan is for a global batch of {plan.global_batch} samples, the job ({job.path}) has "
                f"{job.global_batch}; plan again with plait plan"
            )
    check_metrics(job)
    data = InTurn(turns_of(job), {name: data_of(one) for name, one in jobs_of(job).items()})
    with engine_of(job, plans, paced=paced) as engine:
        engine.watch.on_terminate()
        newest = checkpoint.latest(folder.checkpoints) if resume else None
        if resume and newest is None:
            raise CheckpointError(f"{folder.checkpoints}: no whole checkpoint to resume from; train without --resume")
        positions = engine.load_checkpoint(newest) if newest is not None else None
        Training(job, plans, folder, engine, data, paced, positions or {}).run()


def evaluate_weights(job: Job, plans: Mapping[str, Plan], folder: RunFolder) -> None:
    """Evaluate the weights in the run's ``model`` folder on this rank's part; rank 0 writes the figures down.

    Without any metric it is the held-out loss of every task.
    """
    jobs = jobs_of(job)
    chosen = {name: one for name, one in jobs.items() if one.evaluate is not None} or jobs
    check_metrics(job)
    with engine_of(job, plans, paced=False, training=False, weights=str(folder.model)) as engine:
        engine.watch.on_terminate()
        figures = evaluate(job, engine, {name: data_of(one) for name, one in chosen.items()})
        if engine.rank == 0:
            folder.write_summary(figures)


def evaluate(job: Job, engine: Engine, data: Mapping[str, Data]) -> dict[str, Any]:
    """Held-out loss and metrics of the tasks in ``data``, by their names, on rank 0; nothing elsewhere."""
    jobs = jobs_of(job)
    found = {name: _evaluate_one(jobs[name], engine, source, name) for name, source in data.items()}
    if engine.rank != 0 or not found:
        return {}
    if not job.tasks:
        return found[""]
    metrics = {f"{task} {name}": value for task, given in found.items() for name, value in given["metrics"].items()}
    losses = {task: given["held_out_loss"] for task, given in found.items()}
    return {"held_out_loss": statistics.fmean(losses.values()), "held_out_losses": losses, "metrics": metrics}


def _evaluate_one(job: Job, engine: Engine, data: Data, task: str) -> dict[str, Any]:
    batches = list(data.held_out())
    if not batches:
        raise FileError(f"{job.where('data')}: there are no held-out batches; evaluation needs at least one")
    found = engine.evaluate(batches, job.metric_outputs, task)
    if engine.rank != 0:
        return {}
    outputs = {n: found[n] for n in job.metric_outputs}
    with theirs(job.where("data"), "joining the held-out batches"):
        inputs = joined(batches)
    return {"held_out_loss": found["loss"], "metrics": figures_of(job, outputs, inputs)}


def joined(batches: list[Mapping[str, Any]]) -> dict[str, Tensor]:
    """The tensors of all batches, joined along the samples."""
    names = [n for n, v in batches[0].items() if isinstance(v, Tensor)] if batches else []
    return {name: torch.cat([batch[name] for batch in batches]) for name in names}

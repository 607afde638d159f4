"""The engine: a plan run on torch.distributed, in the user's own processes."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plait.errors import CheckpointError, PlanError, RunError
from plait.model.by_hand import Branches
from plait.model.casting import cast_weights, widened
from plait.model.precision import Precision
from plait.model.traced import LossFunction
from plait.plan.compile import prices_of
from plait.plan.lengths import Lengths
from plait.plan.plan import Plan
from plait.plan.simulate import check
from plait.plan.tasks import check_tasks, for_task, precision_of, task_of, together
from plait.runtime import checkpoint, export
from plait.runtime.batch import Batch, Portion, portion_of
from plait.runtime.clocks import now, offset_to_first
from plait.runtime.compute import Compute, StepData
from plait.runtime.execute import Executor
from plait.runtime.failure import Watch
from plait.runtime.gather import gather_outputs, gather_timeline
from plait.runtime.groups import NamedParameters, trained_branches
from plait.runtime.join import check_hosts, join, own_device
from plait.runtime.masters import Masters
from plait.runtime.optimize import OptimizerFactory, Outcome, SchedulerFactory, Update
from plait.runtime.pacing import Pace, sleep_until
from plait.runtime.padding import form_of, padded
from plait.runtime.parts import capture_for, parts_of, release_others
from plait.runtime.record import Record
from plait.runtime.reduction import Groups, Reducer
from plait.runtime.shares import shares_of
from plait.runtime.start import fill
from plait.runtime.transport import Channel, Transport
from plait.runtime.work import Runnable, Work
from plait.simulate.timeline import Lane, Timeline


class Engine:
    """Trains ``model`` as ``plan`` says. Made on every rank, with the same arguments.

    Args:
        model: the model that the plan is for, with its weights, or without memory for them: built by ``deferred``, or
            on the meta device together with ``weights``. This rank keeps, or makes, only its own stages' parameters.
        plan: a plan, or the path of its file; of a model whose tasks alternate, one for each task by name.
        optimizer: makes the optimizer from this rank's (name, parameter) pairs; ``parameter_groups`` sorts them into
            groups.
        scheduler: makes a learning-rate scheduler from the optimizer; it steps once a step.
        loss: as given to ``capture``; of tasks that alternate, one for all or one for each by name.
        max_grad_norm: gradients are scaled down to this norm over all parameters of all ranks.
        seed: of the random streams (dropout), which do not depend on the plan.
        device: by default this process's CUDA device, else the CPU.
        paced: hold every action and message back to its priced duration, to rehearse slower devices and links.
        timeout: seconds that any wait for another rank may take.
        weights: a safetensors file, its index or a folder to start from; each rank reads only its own tensors.
        branches: as given to ``capture``; of tasks that alternate, one for all or one for each by name.
        lengths: what to do with batches that are longer or shorter than planned; they are refused by default.
        precision: fp32, bf16 or bf16-params; the plan's, which is for one alone: another is refused.

    Raises:
        PlanError: the plan is for another model, cannot be executed or would deadlock.
        RunError: too few or too many processes, or (later) another rank died or was silent too long.
    """

    def __init__(  # noqa: PLR0913
        self,
        model: nn.Module,
        plan: Plan | str | Path | Mapping[str, Plan | str | Path],
        *,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        loss: LossFunction | Mapping[str, LossFunction | None] | None = None,
        max_grad_norm: float | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        paced: bool = False,
        timeout: float = 60.0,
        weights: str | Path | None = None,
        lengths: Lengths | None = None,
        precision: str | None = None,
        branches: Branches | Mapping[str, Branches | None] | None = None,
    ) -> None:
        self._plans = _plans(plan)
        self._precision = precision_of(self._plans, precision)
        self.plan = next(iter(self._plans.values()))
        self.device = own_device(device)
        programs = {name: check(one) for name, one in self._plans.items()}
        self._ranks = len(self.plan.devices)
        self.rank = join(self._ranks, self.device, timeout)
        check_hosts([self.plan.cluster.by_name[name].node for name in self.plan.devices])
        self.step_number = 0
        self._model, self._seed, self._timeout = model, seed, timeout
        self._loss, self._lengths = loss, lengths
        captured = {
            name: capture_for(model, one, self._loss_of(name), for_task(branches, name))
            for name, one in self._plans.items()
        }
        self._parts = parts_of(list(captured.values()), list(self._plans.values()), self.rank, self.device)
        release_others(model, self._parts)
        fill(model, self._parts, weights, next(iter(captured.values())).canonical)
        self._masters = self._make_masters()
        if len(self._plans) > 1:
            self._plans = together(self._plans, {name: c.graph for name, c in captured.items()})
            programs = {name: check(one) for name, one in self._plans.items()}
        self._works = {
            name: Work(one, captured[name], stages, programs[name], self.rank)
            for (name, one), stages in zip(self._plans.items(), self._parts.stages, strict=True)
        }
        self._mode = True
        self._done: Work = next(iter(self._works.values()))
        """What the last step was."""
        self.pace(paced)
        self._connect()
        self._update = self._make_update(optimizer, scheduler, max_grad_norm)
        self._record: Record | None = None
        self._ended: float | None = None

    def _loss_of(self, task: str) -> LossFunction | None:
        return for_task(self._loss, task)

    def _connect(self) -> None:
        alone = self._ranks == 1
        programs = [work.programs for work in self._works.values()]
        sets = [r.ranks for p in programs for r in p.reductions]
        pairs = sorted({(m.sender, m.receiver) for p in programs for m in p.messages}) if self._separate() else []
        self._groups = None if alone else Groups(self._ranks, sets, pairs)
        self._offset = 0.0 if alone else offset_to_first(self.rank, self._ranks, self.device)
        self.watch = Watch(self.rank)

    def _separate(self) -> bool:
        # NCCL runs the point-to-point calls of one communicator one after the other.
        return self.device.type == "cuda"

    def _make_masters(self) -> Masters | None:
        """Master weights of what this rank trains, where the model computes in other weights, which are made here."""
        trained = {n: p for n, p in self._parts.parameters.items() if p.requires_grad}
        masters = Masters(trained) if self._precision is Precision.BF16_PARAMS else None
        cast_weights(self._precision, self._model)
        return masters

    def _make_update(
        self, optimizer: OptimizerFactory | None, scheduler: SchedulerFactory | None, max_norm: float | None
    ) -> Update:
        trained = {n: p for n, p in self._stepped.items() if p.requires_grad}
        branches = trained_branches(work.captured.graph for _, work in sorted(self._works.items()))
        made = optimizer(NamedParameters(trained.items(), branches)) if optimizer is not None and trained else None
        update = Update(
            optimizer=made,
            scheduler=scheduler(made) if scheduler is not None and made is not None else None,
            parameters=trained,
            counted=self._parts.counted,
            max_norm=max_norm,
            device=self.device,
            alone=self._ranks == 1,
            timeout=self._timeout,
        )
        update.check_groups()
        return update

    def pace(self, on: bool) -> None:
        """From the next step on, hold actions and messages back to their priced durations, or don't (every rank)."""
        self._pace = {name: Pace(prices_of(plan)) for name, plan in self._plans.items()} if on else {}

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's optimizer; None where it trains nothing."""
        return self._update.optimizer

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """This rank's parameters under the model's own names."""
        return self._parts.parameters

    @property
    def masters(self) -> Mapping[str, nn.Parameter]:
        """What this rank's optimizer steps in place of parameters in bfloat16, by name; empty where there are none."""
        return self._masters.parameters if self._masters is not None else {}

    @property
    def _stepped(self) -> Mapping[str, nn.Parameter]:
        """This rank's parameters, masters in place of those that have one."""
        return {**self._parts.parameters, **self.masters}

    @property
    def outcome(self) -> Outcome:
        """The last step's loss, global gradient norm and whether all was finite."""
        return self._update.last

    @property
    def skipped_steps(self) -> int:
        """Steps left out since a gradient was not finite."""
        return self._update.skipped

    def positions(self, samples: int, task: str | None = None) -> Sequence[int]:
        """Which samples of a global batch of ``samples`` this rank reads; all where ``lengths`` depend on them all."""
        work = self._works[self._task(task)]
        return range(samples) if self._lengths is not None else work.positions(samples)

    def step(self, batch: Mapping[str, Any] | Portion, task: str | None = None) -> float:
        """One optimizer step over the global batch, given whole on every rank; the global loss, on every rank.

        A rank may instead give the ``Portion`` that it reads, see ``positions``.

        A batch may hold fewer or more samples than planned, as the last of an epoch does. Of tasks that alternate
        the batch's inputs tell which it is, or ``task`` does.
        """
        name, work, portion = self._work_for(batch, task)
        run = work.training(portion.samples)
        data = self._data(work, run, portion)
        self._train(work, True)
        self._execute(work, run, data, self._pace.get(name), training=True)
        self.step_number += 1
        self._done = work
        return self.outcome.loss

    def _task(self, task: str | None, inputs: Collection[str] = ()) -> str:
        """The task's name; where none is given, that of such inputs."""
        if task is not None and task not in self._works:
            raise RunError(f"task: there is no {task!r}; the plans are for {', '.join(self._works)}")
        return next(iter(self._works)) if len(self._works) == 1 else task or task_of(self._plans, set(inputs))

    def _work_for(self, batch: Mapping[str, Any] | Portion, task: str | None) -> tuple[str, Work, Portion]:
        """The task that a batch is for, the work in the form of its inputs, and the batch filled up."""
        name = self._task(task, batch.inputs if isinstance(batch, Portion) else batch)
        work = self._works[name]
        portion = portion_of(batch, work.inputs)  # an input that is missing is told first
        if not portion.samples:
            raise RunError("batch: there are no samples in it")
        if isinstance(batch, Portion):
            self._check_positions(portion, name)
        if self._lengths is not None:
            inputs = padded(portion.inputs, work.inputs, self._lengths)
            portion = Portion(portion.samples, portion.positions, inputs)
            work = work.in_form(form_of(inputs, work.inputs), self._loss_of(name))
        return name, work, portion

    def _check_positions(self, portion: Portion, task: str) -> None:
        absent = set(self.positions(portion.samples, task)).difference(portion.positions)
        if absent:
            raise RunError(f"batch: rank {self.rank} reads the samples {sorted(absent)} of it, which were not given")

    def _data(self, work: Work, run: Runnable, portion: Portion, wanted: frozenset[str] = frozenset()) -> StepData:
        sizes = run.programs.placement.micro_batches
        slices = Batch(portion, work.inputs, sizes, self.device)
        losses = [term for stage in work.stages for term in work.losses_of(stage)]
        shares = shares_of(losses, sizes, slices, work.captured.count)
        return StepData(slices, shares, self._seed, self.step_number, wanted)

    def evaluate(
        self, batches: Iterable[Mapping[str, Any]], outputs: Sequence[str] = (), task: str | None = None
    ) -> dict[str, Any]:
        """Forward only, pipelined, any batch size. Gives ``loss``, the mean over samples, on every rank.

        ``outputs`` (names given to ``capture``) come as tensors over all samples, on rank 0, those in bfloat16 in fp32.
        Of tasks that alternate the batches' inputs tell which it is, or ``task`` does.
        """
        total, samples = 0.0, 0
        parts: dict[str, list[Tensor]] = {name: [] for name in outputs}
        dims: dict[str, int] = {}
        for batch in batches:
            _, work, given = self._work_for(batch, task)
            values = work.values_of(outputs)
            loss, found, count = self._evaluate_one(work, given, values)
            total, samples = total + loss * count, samples + count
            for name, tensor in found.items():
                parts[name].append(tensor)
                dims[name] = work.captured.graph.values[values[name]].batch_dim or 0
        joined = {n: widened(torch.cat(p, dims[n])) for n, p in parts.items() if p}
        return {"loss": total / samples if samples else float("nan"), "samples": samples, **joined}

    def _evaluate_one(
        self, work: Work, portion: Portion, values: Mapping[str, str]
    ) -> tuple[float, dict[str, Tensor], int]:
        """Loss, outputs (name → value in ``values``) and number of samples."""
        samples = portion.samples
        run = work.evaluation(samples)
        self._train(work, False)
        data = self._data(work, run, portion, frozenset(values.values()))
        compute = self._execute(work, run, data, None, training=False)
        loss = self._update.agree(compute.loss, counting=False).loss
        makers = {name: (value, work.maker(value)) for name, value in values.items()}
        placement, specs = run.programs.placement, work.captured.graph.values
        found = gather_outputs(compute.results, makers, placement, specs, self.rank, self.device)
        return loss, found, samples

    def _train(self, work: Work, mode: bool) -> None:
        """Stages of several works share modules, so that a change of mode is told to all that run next."""
        for stage in work.stages.values():
            if stage.training != mode or self._mode != mode:
                stage.train(mode)
        self._mode = mode

    def _execute(self, work: Work, run: Runnable, data: StepData, pace: Pace | None, *, training: bool) -> Compute:
        programs = run.programs
        compute = Compute(programs.placement, work.stages, work.captured.graph.values, data, work.held, self._masters)
        record = Record(self.rank, self._offset, before=self._ended)
        self._ended = None
        transport = reducer = None
        if self._groups is not None:
            names = self.plan.devices
            channel = Channel(self.rank, names, self.device, self._timeout, self._groups.pair, self._offset)
            prefetch = [transfer.prefetch for transfer in work.plan.transfers]
            transport = Transport(channel, programs, run.layouts, pace, prefetch)
            reducer = Reducer(self.rank, programs.reductions, self._stepped, self._groups, self._timeout)
        self.watch.transport = transport
        executor = Executor(
            programs, self.rank, compute, record, self.device, transport=transport, reducer=reducer, pace=pace,
            fixed_bytes=self._fixed_bytes(),
        )  # fmt: skip
        executor.run(lambda: self._finish_step(compute, record, pace))
        self.watch.transport = None
        if training:
            self._record, self._ended = record, record.end
        return compute

    def _finish_step(self, compute: Compute, record: Record, pace: Pace | None) -> None:
        began = now()
        self.watch.ends_step = True
        outcome = self._update.agree(compute.loss)
        self.watch.ends_step = False
        agreed = now()
        record.add(Lane.WAIT, "STEP", began, agreed)
        self._update.step(outcome)
        if self._masters is not None:
            self._masters.publish()
        if pace is not None:
            record.work += now() - agreed
            sleep_until(agreed + pace.prices.step[self.rank])
        record.add(Lane.COMPUTE, "STEP", agreed, now())

    def _fixed_bytes(self) -> int:
        state = self._update.optimizer.state.values() if self._update.optimizer else ()
        kept = sum(t.nbytes for slots in state for t in slots.values() if isinstance(t, Tensor))
        gradients = sum(p.nbytes for p in self._update.parameters.values())
        weights = sum(p.nbytes for p in (*self._parts.parameters.values(), *self.masters.values()))
        return kept + gradients + weights

    def timeline(self) -> Timeline | None:
        """The last step's measured timeline of all ranks, on rank 0; every rank must call it."""
        self._ended = None
        if self._record is None:
            return None
        return gather_timeline(self._record, self._done.plan, self._done.programs)

    def save_checkpoint(self, folder: str | Path, *, keep: int = 3, data: Any = None) -> Path:
        """Write ``folder/step-N``, whole or not at all; every rank must call it. Gives its path.

        ``data`` (JSON) is kept with it, such as where the data stand; the first rank's counts.
        """
        self._ended = None
        own = {n: t.detach() for n, t in self._stored.items() if n in self._parts.counted}
        counted = {n: p for n, p in self._update.parameters.items() if n in self._parts.counted}
        tensors = own | checkpoint.optimizer_tensors(self._update.optimizer, counted)
        state = {
            "model": self._fingerprints(),
            "seed": self._seed,
            "optimizer": self._update.settings_of_all(),
            "data": data,
        }
        return checkpoint.save(folder, self.step_number, tensors, state, keep)

    def load_checkpoint(self, path: str | Path) -> Any:
        """Go on from a checkpoint, made under this plan or another one of the same model; gives its ``data``."""
        state = checkpoint.read_state(path)
        if state.get("model") != self._fingerprints():
            raise CheckpointError(f"{path}: it is of another model ({state.get('model')}, not {self._fingerprints()})")
        checkpoint.load(path, self._stored, self._update.optimizer)
        if self._masters is not None:
            self._masters.publish()
        self._update.restore(state.get("optimizer"))
        self.step_number = int(state["step"])
        return state.get("data")

    @property
    def _stored(self) -> dict[str, Tensor]:
        """What a checkpoint holds of this rank: parameters, masters in place of those that have one, and buffers."""
        return {**self._parts.tensors, **self.masters}

    def _fingerprints(self) -> str:
        """Of the model's graph under each task; the order of the tasks does not matter."""
        return " ".join(sorted(plan.model.fingerprint for plan in self._plans.values()))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the weights, and the model's config where it has one, as ``from_pretrained`` reads them."""
        export.save_pretrained(folder, self._model, self._parts, self.rank, self._ranks, self.device)

    def close(self) -> None:
        """Leave the process group."""
        if self._groups is not None and dist.is_initialized():
            dist.destroy_process_group()
            self._groups = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plans(given: Plan | str | Path | Mapping[str, Plan | str | Path]) -> dict[str, Plan]:
    """Plans by task; raises PlanError where there is none, or they don't suit each other."""
    named = given if isinstance(given, Mapping) else {"": given}
    if not named:
        raise PlanError("plan: there is none; give one for each task")
    found = {name: plan if isinstance(plan, Plan) else Plan.load(plan) for name, plan in named.items()}
    check_tasks(found)
    return found

"""The engine: a plan run on torch.distributed, in the user's own processes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plait.errors import CheckpointError, RunError
from plait.model.traced import LossFunction
from plait.plan.compile import placement_of, prices_of
from plait.plan.plan import Plan
from plait.plan.simulate import check
from plait.runtime import checkpoint, export
from plait.runtime.batch import Batch, divided, samples_of
from plait.runtime.clocks import now, offset_to_first
from plait.runtime.compute import Compute, StepData
from plait.runtime.execute import Executor
from plait.runtime.failure import Watch
from plait.runtime.gather import gather_outputs, gather_timeline
from plait.runtime.join import check_hosts, join, own_device
from plait.runtime.layout import Layout, layout_of
from plait.runtime.optimize import OptimizerFactory, Outcome, SchedulerFactory, Update
from plait.runtime.pacing import Pace, sleep_until
from plait.runtime.parts import capture_for, parts_of, release_others
from plait.runtime.record import Record
from plait.runtime.reduction import Groups, Reducer
from plait.runtime.shares import shares_of
from plait.runtime.transport import Channel, Transport
from plait.runtime.weights import load as load_weights
from plait.schedule.lower import lower
from plait.schedule.placement import Placement, Replica
from plait.schedule.program import Direction, Programs
from plait.schedule.published.forward_only import forward_only
from plait.simulate.timeline import Lane, Timeline


class Engine:
    """Trains ``model`` as ``plan`` says. Made on every rank, with the same arguments.

    Args:
        model: the model that the plan is for, with its weights, or on the meta device together with ``weights``.
            This rank keeps only its own stages' parameters.
        plan: a plan, or the path of its file.
        optimizer: makes the optimizer from this rank's (name, parameter) pairs.
        scheduler: makes a learning-rate scheduler from the optimizer; it steps once a step.
        loss: as given to ``capture``.
        max_grad_norm: gradients are scaled down to this norm over all parameters of all ranks.
        seed: of the random streams (dropout), which do not depend on the plan.
        device: by default this process's CUDA device, else the CPU.
        paced: hold every action and message back to its priced duration, to rehearse slower devices and links.
        timeout: seconds that any wait for another rank may take.
        weights: a folder of safetensors to start from; each rank reads only its own tensors.

    Raises:
        PlanError: the plan is for another model, cannot be executed or would deadlock.
        RunError: too few or too many processes, or (later) another rank died or was silent too long.
    """

    def __init__(  # noqa: PLR0913
        self,
        model: nn.Module,
        plan: Plan | str | Path,
        *,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        loss: LossFunction | None = None,
        max_grad_norm: float | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        paced: bool = False,
        timeout: float = 60.0,
        weights: str | Path | None = None,
    ) -> None:
        self.plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self.device = own_device(device)
        self._programs = check(self.plan)
        self._ranks = len(self.plan.devices)
        self.rank = join(self._ranks, self.device, timeout)
        check_hosts([self.plan.cluster.by_name[name].node for name in self.plan.devices])
        self.step_number = 0
        self._model, self._seed, self._timeout = model, seed, timeout
        self._captured = capture_for(model, self.plan, loss)
        self._parts = parts_of(self._captured, self.plan, self.rank, self.device)
        if weights is not None:
            load_weights(weights, self._parts.tensors, self._captured.canonical)
        elif any(p.is_meta for p in model.parameters()):
            raise RunError("the model is on the meta device: give weights, the folder to read them from")
        release_others(model, self._parts)
        self._held: dict[tuple[int, int], int] = {}
        self.pace(paced)
        self._connect()
        self._update = self._make_update(optimizer, scheduler, max_grad_norm)
        self._layouts = self._layouts_of(self._programs)
        self._evaluations: dict[int, tuple[Programs, list[Layout | None]]] = {}
        self._record: Record | None = None
        self._ended: float | None = None

    def _connect(self) -> None:
        alone = self._ranks == 1
        sets = [r.ranks for r in self._programs.reductions]
        pairs = sorted({(m.sender, m.receiver) for m in self._programs.messages}) if self._separate() else []
        self._groups = None if alone else Groups(self._ranks, sets, pairs)
        self._offset = 0.0 if alone else offset_to_first(self.rank, self._ranks, self.device)
        self.watch = Watch(self.rank)

    def _separate(self) -> bool:
        # NCCL runs the point-to-point calls of one communicator one after the other.
        return self.device.type == "cuda"

    def _make_update(
        self, optimizer: OptimizerFactory | None, scheduler: SchedulerFactory | None, max_norm: float | None
    ) -> Update:
        trained = {n: p for n, p in self._parts.parameters.items() if p.requires_grad}
        made = optimizer(list(trained.items())) if optimizer is not None and trained else None
        return Update(
            optimizer=made,
            scheduler=scheduler(made) if scheduler is not None and made is not None else None,
            parameters=trained,
            counted=self._parts.counted,
            max_norm=max_norm,
            device=self.device,
            alone=self._ranks == 1,
            timeout=self._timeout,
        )

    def pace(self, on: bool) -> None:
        """From the next step on, hold actions and messages back to their priced durations, or don't (every rank)."""
        self._pace = Pace(prices_of(self.plan)) if on else None

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's optimizer; None where it trains nothing."""
        return self._update.optimizer

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """This rank's parameters under the model's own names."""
        return self._parts.parameters

    @property
    def outcome(self) -> Outcome:
        """The last step's loss, global gradient norm and whether all was finite."""
        return self._update.last

    @property
    def skipped_steps(self) -> int:
        """Steps left out since a gradient was not finite."""
        return self._update.skipped

    def step(self, batch: Mapping[str, Any]) -> float:
        """One optimizer step over the global batch, given whole on every rank; the global loss, on every rank."""
        slices = Batch(batch, self.plan.model.inputs, self.plan.micro_batches, self.device)
        shares = shares_of(self.plan.model.losses, self.plan.micro_batches, slices, self._captured.count)
        data = StepData(slices, shares, self._seed, self.step_number)
        self._train(True)
        compute = self._compute(self._programs.placement, data)
        self._execute(self._programs, self._layouts, compute, training=True)
        self.step_number += 1
        return self.outcome.loss

    def evaluate(self, batches: Iterable[Mapping[str, Any]], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Forward only, pipelined, any batch size. Gives ``loss``, the mean over samples, on every rank.

        ``outputs`` (names given to ``capture``) come as tensors over all samples, on rank 0.
        """
        unknown = [name for name in outputs if name not in self.plan.model.outputs]
        if unknown:
            known = ", ".join(self.plan.model.outputs) or "none"
            raise RunError(f"outputs: the plan keeps no output {unknown[0]!r}; it keeps {known}")
        total, samples = 0.0, 0
        parts: dict[str, list[Tensor]] = {name: [] for name in outputs}
        self._train(False)
        for batch in batches:
            loss, found, count = self._evaluate_one(batch, outputs)
            total, samples = total + loss * count, samples + count
            for name, tensor in found.items():
                parts[name].append(tensor)
        joined = {n: torch.cat(p, self._output_dim(n)) for n, p in parts.items() if p}
        return {"loss": total / samples if samples else float("nan"), "samples": samples, **joined}

    def _output_dim(self, name: str) -> int:
        return self._captured.graph.values[self.plan.model.outputs[name]].batch_dim or 0

    def _evaluate_one(self, batch: Mapping[str, Any], outputs: Sequence[str]) -> tuple[float, dict[str, Tensor], int]:
        samples = samples_of(batch, self.plan.model.inputs)
        if not samples:
            raise RunError("batch: there are no samples in it")
        programs, layouts = self._evaluation(samples)
        sizes = programs.placement.micro_batches
        slices = Batch(batch, self.plan.model.inputs, sizes, self.device)
        shares = shares_of(self.plan.model.losses, sizes, slices, self._captured.count)
        makers = {name: self._maker(self.plan.model.outputs[name]) for name in outputs}
        wanted = frozenset(value for value, _ in makers.values())
        data = StepData(slices, shares, self._seed, self.step_number, wanted)
        compute = self._compute(programs.placement, data)
        self._execute(programs, layouts, compute, training=False)
        loss = self._update.agree(compute.loss, counting=False).loss
        specs = self._captured.graph.values
        found = gather_outputs(compute.results, makers, programs.placement, specs, self.rank, self.device)
        return loss, found, samples

    def _maker(self, value: str) -> tuple[str, int]:
        layer = self._captured.graph.producers[value]
        return value, next(i for i, stage in enumerate(self.plan.stages) if layer in stage.layers)

    def _evaluation(self, samples: int) -> tuple[Programs, list[Layout | None]]:
        """Programs for a batch of another size, made once for each size."""
        if samples not in self._evaluations:
            placement = placement_of(self.plan)
            sizes = divided(samples, self.plan.micro_batches)
            kept = tuple(
                replace(
                    stage,
                    replicas=tuple(
                        Replica(r.rank, tuple(m for m in r.micro_batches if m < len(sizes))) for r in stage.replicas
                    ),
                    recompute=False,
                )
                for stage in placement.stages
            )
            placement = replace(placement, stages=kept, micro_batches=sizes, reductions=())
            programs = lower(forward_only(placement), placement)
            self._evaluations[samples] = programs, self._layouts_of(programs)
        return self._evaluations[samples]

    def _train(self, mode: bool) -> None:
        for stage in self._parts.stages.values():
            if stage.training != mode:
                stage.train(mode)

    def _compute(self, placement: Placement, data: StepData) -> Compute:
        return Compute(placement, self._parts.stages, self._captured.graph.values, data, self._held)

    def _execute(self, programs: Programs, layouts: list[Layout | None], compute: Compute, *, training: bool) -> None:
        record = Record(self.rank, self._offset, before=self._ended)
        self._ended = None
        pace = self._pace if training else None
        transport = reducer = None
        if self._groups is not None:
            names = self.plan.devices
            channel = Channel(self.rank, names, self.device, self._timeout, self._groups.pair, self._offset)
            prefetch = [transfer.prefetch for transfer in self.plan.transfers]
            transport = Transport(channel, programs, layouts, pace, prefetch)
            reducer = Reducer(self.rank, programs.reductions, self._parts.parameters, self._groups, self._timeout)
        self.watch.transport = transport
        executor = Executor(
            programs, self.rank, compute, record, self.device, transport=transport, reducer=reducer, pace=pace,
            fixed_bytes=self._fixed_bytes(),
        )  # fmt: skip
        executor.run(lambda: self._finish_step(compute, record, pace))
        self.watch.transport = None
        if training:
            self._record, self._ended = record, record.end

    def _finish_step(self, compute: Compute, record: Record, pace: Pace | None) -> None:
        began = now()
        self.watch.ends_step = True
        outcome = self._update.agree(compute.loss)
        self.watch.ends_step = False
        agreed = now()
        record.add(Lane.WAIT, "STEP", began, agreed)
        self._update.step(outcome)
        if pace is not None:
            record.work += now() - agreed
            sleep_until(agreed + pace.prices.step[self.rank])
        record.add(Lane.COMPUTE, "STEP", agreed, now())

    def _fixed_bytes(self) -> int:
        state = self._update.optimizer.state.values() if self._update.optimizer else ()
        kept = sum(t.nbytes for slots in state for t in slots.values() if isinstance(t, Tensor))
        gradients = sum(p.nbytes for p in self._update.parameters.values())
        return kept + gradients + sum(p.nbytes for p in self._parts.parameters.values())

    def _layouts_of(self, programs: Programs) -> list[Layout | None]:
        """The layout of each message that this rank sends or receives."""
        specs = self._captured.graph.values
        found: list[Layout | None] = []
        for message in programs.messages:
            if self.rank not in (message.sender, message.receiver):
                found.append(None)
                continue
            names = programs.placement.edges[message.edge].values
            if message.direction is Direction.BACKWARD:
                names = tuple(name for name in names if specs[name].gradient)
            found.append(layout_of(specs, names, programs.placement.samples(message.micro_batch)))
        return found

    def timeline(self) -> Timeline | None:
        """The last step's measured timeline of all ranks, on rank 0; every rank must call it."""
        self._ended = None
        if self._record is None:
            return None
        return gather_timeline(self._record, self.plan, self._programs)

    def save_checkpoint(self, folder: str | Path, *, keep: int = 3) -> Path:
        """Write ``folder/step-N``, whole or not at all; every rank must call it. Gives its path."""
        self._ended = None
        own = {n: t.detach() for n, t in self._parts.tensors.items() if n in self._parts.counted}
        counted = {n: p for n, p in self._update.parameters.items() if n in self._parts.counted}
        tensors = own | checkpoint.optimizer_tensors(self._update.optimizer, counted)
        state = {"model": self.plan.model.fingerprint, "seed": self._seed, "rates": self._update.rates_of_all()}
        return checkpoint.save(folder, self.step_number, tensors, state, keep)

    def load_checkpoint(self, path: str | Path) -> None:
        """Go on from a checkpoint, made under this plan or another one of the same model."""
        state = checkpoint.read_state(path)
        if state.get("model") != self.plan.model.fingerprint:
            raise CheckpointError(
                f"{path}: it is of another model ({state.get('model')}, not {self.plan.model.fingerprint})"
            )
        checkpoint.load(path, self._parts.tensors, self._update.optimizer)
        self._update.restore_rates(state.get("rates"))
        self.step_number = int(state["step"])

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

"""Work: a plan on one rank, for inputs of one form: its stages, and programs for every number of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from plait.errors import CaptureError, RunError
from plait.model.capture import Captured, retrace
from plait.model.graph import Loss, Scope, TensorSpec
from plait.model.stages import Stage, build_stage
from plait.model.traced import LossFunction
from plait.plan.compile import placement_of
from plait.plan.plan import Plan
from plait.plan.pricing import size_of
from plait.runtime.batch import divided
from plait.runtime.layout import Layout, layout_of
from plait.schedule.action import Schedule
from plait.schedule.lower import lower
from plait.schedule.placement import Placement, Replica
from plait.schedule.program import Direction, Programs
from plait.schedule.published.forward_only import forward_only


@dataclass(frozen=True)
class Runnable:
    """Programs, and the layout of each message that this rank sends or receives."""

    programs: Programs
    layouts: Sequence[Layout | None]


class Work:
    """The stages of ``plan`` that ``rank`` holds. ``programs`` are those of the plan's own global batch."""

    def __init__(
        self, plan: Plan, captured: Captured, stages: Mapping[int, Stage], programs: Programs, rank: int
    ) -> None:
        self.plan = plan
        self.captured = captured
        self.stages = stages
        self.held: dict[tuple[int, int], int] = {}
        """(stage, samples) → bytes of activations that its forward holds."""
        self._rank = rank
        self._programs = programs
        self._training: dict[int, Runnable] = {}
        self._evaluation: dict[int, Runnable] = {}
        self._forms: dict[tuple[tuple[str, TensorSpec], ...], Work] = {}

    @property
    def inputs(self) -> Mapping[str, TensorSpec]:
        """The inputs' forms."""
        return self.captured.graph.inputs

    @property
    def programs(self) -> Programs:
        """Those of a step on the plan's global batch."""
        return self._programs

    def training(self, samples: int) -> Runnable:
        """A step on ``samples`` samples; where they are fewer or more than planned the micro-batches' sizes differ."""
        if samples not in self._training:
            whole = samples == self.plan.global_batch
            self._training[samples] = self._with_layouts(self._programs if whole else self._resized(samples))
        return self._training[samples]

    def evaluation(self, samples: int) -> Runnable:
        """Forwards only, over ``samples`` samples."""
        if samples not in self._evaluation:
            placement = resized(placement_of(self.plan), divided(samples, self.plan.micro_batches))
            stages = tuple(replace(stage, recompute=False) for stage in placement.stages)
            placement = replace(placement, stages=stages, reductions=())
            self._evaluation[samples] = self._with_layouts(lower(forward_only(placement), placement))
        return self._evaluation[samples]

    def positions(self, samples: int) -> list[int]:
        """Which samples of a global batch of so many this rank reads: its own micro-batches', where it has inputs.

        What makes a weighted loss reads them all, since it weighs its micro-batches against the others.
        """
        placement = self.training(samples).programs.placement
        read = {m for stage in self.stages for m in self._read(stage, placement)}
        starts = list(accumulate(placement.micro_batches, initial=0))
        return [p for m in sorted(read) for p in range(starts[m], starts[m + 1])]

    def _read(self, stage: int, placement: Placement) -> Sequence[int]:
        """The micro-batches whose inputs a stage reads on this rank."""
        graph, everything = self.captured.graph, range(len(placement.micro_batches))
        if any(term.scope is Scope.WEIGHTED for term in self.losses_of(stage)):
            return everything
        if not any(graph.by_name[name].inputs for name in self.plan.stages[stage].layers):
            return ()
        own = [r.micro_batches for r in placement.stages[stage].replicas if r.rank == self._rank]
        return everything if placement.stages[stage].batch_scope else [m for ms in own for m in ms]

    def losses_of(self, stage: int) -> list[Loss]:
        """The loss terms that a stage makes."""
        graph = self.captured.graph
        return [term for term in graph.losses if graph.producers[term.value] in self.plan.stages[stage].layers]

    def values_of(self, outputs: Sequence[str]) -> dict[str, str]:
        """Output → value; raises RunError for one that the plan does not keep."""
        kept = self.plan.model.outputs
        unknown = [name for name in outputs if name not in kept]
        if unknown:
            raise RunError(f"outputs: the plan keeps no output {unknown[0]!r}; it keeps {', '.join(kept) or 'none'}")
        return {name: kept[name] for name in outputs}

    def maker(self, value: str) -> int:
        """The stage that makes a value, by its position in the plan."""
        layer = self.captured.graph.producers[value]
        return next(i for i, stage in enumerate(self.plan.stages) if layer in stage.layers)

    def in_form(self, inputs: Mapping[str, TensorSpec], loss: LossFunction | None) -> "Work":
        """The same stages for inputs of other lengths. The model is traced again for them, once for each form.

        Raises RunError where the model is cut otherwise for such inputs.
        """
        if dict(inputs) == dict(self.inputs):
            return self
        key = tuple(sorted(inputs.items(), key=lambda item: item[0]))
        if key not in self._forms:
            self._forms[key] = self._traced_again(inputs, loss)
        return self._forms[key]

    def _resized(self, samples: int) -> Programs:
        """The plan's own order, without the micro-batches that are left out."""
        sizes = divided(samples, self.plan.micro_batches)
        placement = resized(self._programs.placement, sizes)
        whole = self._programs.schedule
        rows = tuple(tuple(a for a in row if a.micro_batch < len(sizes)) for row in whole.rows)
        return lower(Schedule(whole.name, rows, whole.options), placement)

    def _traced_again(self, inputs: Mapping[str, TensorSpec], loss: LossFunction | None) -> "Work":
        shapes = ", ".join(f"{n} {list(s.shape[1:])}" for n, s in inputs.items())
        given = self.plan.model
        if given.values:
            raise RunError(
                f"batch: the model is described by hand and planned for other lengths than {shapes}; fill samples up "
                "to the planned ones"
            )
        try:
            captured = retrace(
                self.captured.model, inputs, given.losses, given.outputs, loss, given.mixing, given.precision
            )
        except CaptureError as error:
            raise RunError(f"batch: the model cannot be traced for samples of {shapes}: {error}") from error
        if _cut(captured) != _cut(self.captured):
            raise RunError(
                f"batch: for samples of {shapes} the model is cut into other layers than planned; plan again for them"
            )
        plan = _with_bytes(self.plan, captured)
        stages = {i: build_stage(captured, plan.stages[i].layers) for i in self.stages}
        placement = replace(placement_of(plan), reductions=self._programs.placement.reductions)
        return Work(plan, captured, stages, lower(self._programs.schedule, placement), self._rank)

    def _with_layouts(self, programs: Programs) -> Runnable:
        return Runnable(programs, [self._layout(programs, i) for i in range(len(programs.messages))])

    def _layout(self, programs: Programs, index: int) -> Layout | None:
        message = programs.messages[index]
        if self._rank not in (message.sender, message.receiver):
            return None
        specs = self.captured.graph.values
        names = programs.placement.edges[message.edge].values
        if message.direction is Direction.BACKWARD:
            names = tuple(name for name in names if specs[name].gradient)
        return layout_of(specs, names, programs.placement.samples(message.micro_batch))


def resized(placement: Placement, sizes: tuple[int, ...]) -> Placement:
    """The placement with micro-batches of these sizes, no more of them than it has."""
    stages = tuple(
        replace(
            stage,
            replicas=tuple(
                Replica(r.rank, tuple(m for m in r.micro_batches if m < len(sizes))) for r in stage.replicas
            ),
        )
        for stage in placement.stages
    )
    return replace(placement, stages=stages, micro_batches=sizes)


def _cut(captured: Captured) -> list[tuple[object, ...]]:
    return [(x.name, x.scope, x.inputs, x.reads, x.writes) for x in captured.graph.layers]


def _with_bytes(plan: Plan, captured: Captured) -> Plan:
    """The plan with the sizes that its transfers have for other inputs."""
    values = captured.graph.values
    transfers = []
    for transfer in plan.transfers:
        size = size_of([values[v] for v in transfer.values])
        back = size_of([values[v] for v in transfer.values if values[v].gradient] if transfer.gradient else [])
        transfers.append(
            transfer.model_copy(
                update={
                    "bytes_per_sample": size.per_sample,
                    "bytes_fixed": size.fixed,
                    "gradient_bytes_per_sample": back.per_sample,
                    "gradient_bytes_fixed": back.fixed,
                }
            )
        )
    model = plan.model.model_copy(update={"inputs": dict(captured.graph.inputs)})
    return plan.model_copy(update={"transfers": tuple(transfers), "model": model})

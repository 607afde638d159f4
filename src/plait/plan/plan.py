"""Plan: a small readable YAML file that says everything a run needs, and what it predicts.

It can be written by hand, diffed, checked and run again. Stages are named; ranks are positions in ``devices``.
"""

from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from plait.cluster.spec import Cluster
from plait.cost.costs import Source
from plait.files import FileValue, Value
from plait.model.graph import Loss, Scope, TensorSpec
from plait.model.precision import Precision
from plait.units import Bytes, Seconds

Codec = Literal["exact", "bf16", "fp8", "int8"]
ReductionAlgorithm = Literal["all_reduce"]


class ModelPlan(Value):
    """The model that the plan is for. ``fingerprint`` is the BranchGraph's: another model is refused."""

    name: str
    fingerprint: str
    precision: Precision = Precision.FP32
    inputs: dict[str, TensorSpec]
    losses: tuple[Loss, ...] = ()
    outputs: dict[str, str] = Field(default_factory=dict)
    mixing: tuple[str, ...] = ()
    """As in the BranchGraph: each rank traces the model again and must cut it alike."""
    values: dict[str, TensorSpec] = Field(default_factory=dict)
    """Of a model described by hand: each rank has the forms of its values from here, and runs nothing to find them."""


class ReplicaPlan(Value):
    """One copy of a stage: its rank and the global numbers of the micro-batches that it runs."""

    rank: Annotated[int, Field(ge=0)]
    micro_batches: tuple[int, ...] | Literal["all"] = "all"


class PricePlan(Value):
    """What the stage is expected to cost on ``rank`` for a micro-batch of ``samples`` samples."""

    rank: int
    samples: int
    forward: Seconds
    input_gradient: Seconds
    weight_gradient: Seconds
    held: Bytes
    """Activations held from forward to backward."""
    kept: Bytes
    """Inputs kept where it recomputes."""
    source: Source


class StagePlan(Value):
    """Consecutive layers of one branch and the ranks that hold them."""

    name: str
    branch: str
    layers: tuple[str, ...] = Field(min_length=1)
    scope: Literal[Scope.MICROBATCH, Scope.BATCH] = Scope.MICROBATCH
    replicas: tuple[ReplicaPlan, ...] = Field(min_length=1)
    backward: bool = True
    weight_gradient: bool = True
    """Whether it has parameters that learn; if not, its backward passes the gradient on and no more."""
    recompute: bool = False
    parameter_bytes: Bytes = 0.0
    gradient_bytes: Bytes = 0.0
    optimizer_bytes: Bytes = 0.0
    prices: tuple[PricePlan, ...] = ()


class Transfer(Value):
    """Values that travel from stage to stage for every micro-batch, and how."""

    source: str
    target: str
    values: tuple[str, ...]
    bytes_per_sample: float = 0.0
    bytes_fixed: float = 0.0
    gradient: bool = True
    """Whether gradients travel back."""
    gradient_bytes_per_sample: float = 0.0
    gradient_bytes_fixed: float = 0.0
    codec: Codec = "exact"
    gradient_codec: Codec = "exact"
    prefetch: Annotated[int, Field(ge=1)] = 4
    """Receives posted ahead of their use, per direction."""


class ReductionPlan(Value):
    """Gradients of ``parameters`` summed over ``ranks`` before the step."""

    parameters: tuple[str, ...] = Field(min_length=1)
    ranks: tuple[int, ...] = Field(min_length=2)
    nbytes: Bytes
    seconds: Seconds = 0.0
    algorithm: ReductionAlgorithm = "all_reduce"


class SchedulePlan(Value):
    """The schedule: by name and options, or explicitly, one line of actions per rank."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    order: tuple[str, ...] | None = None


class Prediction(Value):
    """What the simulator says of this plan."""

    step_time: Seconds
    samples_per_second: float
    bubble_ratio: float
    peak_memory: tuple[Bytes, ...]
    """Per rank."""
    sources: dict[Source, float] = Field(default_factory=dict)
    """Share of the compute time whose cost is measured, scaled, modelled."""


class Plan(FileValue, kind="plait-plan/1"):
    """Which layers run where, in which order, over which links."""

    format: str = "plait-plan/1"
    model: ModelPlan
    cluster: Cluster
    devices: tuple[str, ...] = Field(min_length=1)
    """Rank → device name (site/node/number)."""
    micro_batches: tuple[Annotated[int, Field(gt=0)], ...] = Field(min_length=1)
    """Samples of each micro-batch, by global number; their sum is the global batch."""
    stages: tuple[StagePlan, ...] = Field(min_length=1)
    """In topological order."""
    transfers: tuple[Transfer, ...] = ()
    reductions: tuple[ReductionPlan, ...] = ()
    step_seconds: tuple[Seconds, ...] = ()
    """Of the optimizer's step, per rank."""
    schedule: SchedulePlan
    predicted: Prediction | None = None

    @property
    def global_batch(self) -> int:
        """Samples of one step."""
        return sum(self.micro_batches)

    @cached_property
    def stage_index(self) -> dict[str, int]:
        """Stage name → its position."""
        return {stage.name: index for index, stage in enumerate(self.stages)}

    @model_validator(mode="after")
    def _check(self) -> "Plan":
        names = [s.name for s in self.stages]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise ValueError(f"stages: {', '.join(twice)} stands twice; names must differ")
        self._check_devices()
        for index, transfer in enumerate(self.transfers):
            for end in (transfer.source, transfer.target):
                if end not in names:
                    raise ValueError(f"transfers.{index}: no stage {end!r}; stages: {', '.join(names)}")
        for stage in self.stages:
            self._check_stage(stage)
        return self

    def _check_devices(self) -> None:
        for rank, device in enumerate(self.devices):
            if device not in self.cluster.by_name:
                known = ", ".join(self.cluster.by_name)
                raise ValueError(f"devices.{rank}: no device {device!r} in the cluster; it has {known}")
        if len(set(self.devices)) < len(self.devices):
            raise ValueError("devices: a device is given to two ranks")
        if self.step_seconds and len(self.step_seconds) != len(self.devices):
            raise ValueError(f"step_seconds: expected {len(self.devices)} figures, one per rank")

    def _check_stage(self, stage: StagePlan) -> None:
        for replica in stage.replicas:
            if replica.rank >= len(self.devices):
                raise ValueError(
                    f"stages.{stage.name}.replicas: rank {replica.rank} has no device; there are {len(self.devices)}"
                )
            if replica.micro_batches == "all":
                continue
            wrong = [m for m in replica.micro_batches if not 0 <= m < len(self.micro_batches)]
            if wrong:
                raise ValueError(
                    f"stages.{stage.name}.replicas: no micro-batch {wrong[0]}; there are {len(self.micro_batches)}"
                )

"""Job: ``job.yaml``, the model, data, loss, optimizer, cluster and outputs of a run.

Paths stand relative to the job file, and ``module:function`` is looked for beside it first. Nothing here imports
torch: a job can be read, checked and planned around at once.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from plait.files import FileValue, Value
from plait.model.precision import Precision
from plait.plan.groups import GroupRule
from plait.plan.lengths import Lengths

Reference = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$",
        description="module:name; the module is looked for beside the job file first",
        examples=["digits:Digits"],
    ),
]
Count = Annotated[int, Field(gt=0)]
Options = dict[str, Any]
Scope = Literal["microbatch", "weighted", "batch"]


class ModelJob(Value):
    """The model: made by a function (``factory``), or of a ``class`` with a ``config``."""

    factory: Reference | None = Field(None, description="a function that returns the nn.Module, given `options`")
    options: Options = Field(default_factory=dict, description="keyword arguments of the factory")
    of_class: Reference | None = Field(
        None,
        alias="class",
        description="a class with `config_class`, such as transformers:CLIPModel",
        examples=["transformers:CLIPModel"],
    )
    config: Options = Field(default_factory=dict, description="keyword arguments of the class's config")
    branches: Reference | None = Field(
        None, description="branches(model) returns a plait.Branches: the model described by hand, not traced"
    )

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="after")
    def _check(self) -> "ModelJob":
        if (self.factory is None) == (self.of_class is None):
            raise ValueError("give either factory (with options) or class (with config)")
        if self.factory is None and self.options:
            raise ValueError("options: they belong to a factory; a class takes config")
        if self.of_class is None and self.config:
            raise ValueError("config: it belongs to a class; a factory takes options")
        return self


class DataJob(Value):
    """The data: ``factory(**options)`` gives a dataset, an iterable, a DataLoader or a ``batch(step)``."""

    factory: Reference
    options: Options = Field(default_factory=dict, description="keyword arguments of the factory")
    held_out: Reference | None = Field(
        default=None, description="a function with the same options that gives data to evaluate on"
    )
    collate: Reference | None = Field(
        default=None, description="makes a batch of a list of samples; torch's default_collate without"
    )
    shuffle: bool = Field(default=True, description="of a map-style dataset: another order in each epoch")
    seed: int | None = Field(default=None, description="of that order; the job's without")
    workers: Annotated[int, Field(ge=0)] = Field(
        default=0, description="of a map-style dataset: processes per rank that read it"
    )
    drop_last: bool = Field(default=False, description="leave out the last batch of an epoch where it is short")
    whole: bool | None = Field(
        default=None,
        description="every rank reads the whole batch of a dataset, for a collate that mixes samples or draws random "
        "numbers; without, each reads its share, but with collate the whole batch",
    )
    batched: bool | None = Field(
        default=None, description="an iterable gives whole batches, not samples; true for a DataLoader"
    )


class OptimizerJob(Value):
    """The optimizer: a class of torch.optim or a function of the user's, and its options."""

    name: str = Field(default="AdamW", description="a class of torch.optim", examples=["AdamW", "SGD"])
    factory: Reference | None = Field(
        default=None, description="instead of name: factory(params, **options) returns the optimizer"
    )
    options: Options = Field(default_factory=dict, description="its keyword arguments, such as lr")
    groups: tuple[GroupRule, ...] = Field(
        default=(),
        description="other options for some parameters; of two rules that suit a parameter the later one holds",
    )
    no_decay: tuple[str, ...] = Field(
        default=(),
        description="parameters without weight decay: patterns of names, as in a shell",
        examples=[["*.bias"]],
    )

    @model_validator(mode="after")
    def _check(self) -> "OptimizerJob":
        if self.factory is not None and "name" in self.model_fields_set:
            raise ValueError("give either name or factory")
        return self


class SchedulerJob(Value):
    """The learning rate: up over ``warmup`` steps, then down along a cosine, or as a class or function makes it."""

    warmup: Annotated[int, Field(ge=0)] = 0
    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="of the cosine: share of the full rate at the last step"
    )
    name: str | None = Field(
        None,
        description="instead of the cosine, after the warm-up: a class of torch.optim.lr_scheduler",
        examples=["StepLR", "OneCycleLR"],
    )
    factory: Reference | None = Field(
        None, description="instead of the cosine, after the warm-up: factory(optimizer, **options) returns a scheduler"
    )
    options: Options = Field(default_factory=dict, description="keyword arguments of the class or factory")

    @model_validator(mode="after")
    def _check(self) -> "SchedulerJob":
        if self.name is not None and self.factory is not None:
            raise ValueError("give either name or factory")
        made = self.name is not None or self.factory is not None
        if made and "floor" in self.model_fields_set:
            raise ValueError("floor: it belongs to the cosine; leave it out beside name or factory")
        if self.options and not made:
            raise ValueError("options: they belong to a name or factory; the cosine takes warmup and floor")
        return self


class CheckpointJob(Value):
    """When to write checkpoints: every so many steps, the newest ``keep`` of them kept."""

    every: Annotated[int, Field(ge=0)] = Field(default=100, description="steps; 0 for none but the last")
    keep: Count = 3


class EvaluateJob(Value):
    """``metric(outputs, inputs)`` over the held-out batches gives a number or several by name."""

    metric: Reference
    outputs: tuple[str, ...] = Field((), description="the job's outputs that the metric reads; all by default")


class TaskJob(Value):
    """One of the tasks that a model is trained for in turn."""

    data: DataJob
    turns: Count = Field(1, description="steps of this task in a round of all tasks")
    loss: Reference | None = Field(None, description="this task's loss(result, batch); the job's without")
    branches: Reference | None = Field(None, description="this task's description by hand; the model's without")
    outputs: tuple[str, ...] = Field((), description="fields of the model's result that evaluation reads")
    evaluate: EvaluateJob | None = None


class Job(FileValue, kind="plait-job/1"):
    """What to train, on what, how."""

    format: str = "plait-job/1"
    name: str = "job"
    model: ModelJob
    weights: str | None = Field(
        None, description="a safetensors file, its index or a folder to start from; random by `seed` without"
    )
    data: DataJob | None = Field(None, description="either this or tasks")
    tasks: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")], TaskJob] = Field(
        default_factory=dict, description="instead of data: tasks by name that take turns, a batch of one at each step"
    )
    loss: Reference | None = Field(None, description="loss(result, batch); the model's own without")
    outputs: tuple[str, ...] = Field((), description="fields of the model's result that evaluation reads")
    scopes: dict[str, Scope] = Field(
        default_factory=dict,
        description="scopes of loss terms or modules by name, where trying does not find what is meant",
        examples=[{"loss": "batch"}],
    )
    precision: Precision = Field(
        Precision.FP32,
        description="fp32 (the model's own dtypes), bf16 (autocast), or bf16-params (with master weights in fp32)",
    )
    lengths: Lengths | None = Field(
        None, description="batches whose samples are longer or shorter than the first ones; refused without"
    )
    optimizer: OptimizerJob = OptimizerJob()
    scheduler: SchedulerJob | None = None
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    global_batch: Count = Field(description="samples of one step")
    micro_batch: Count | None = Field(None, description="samples of a micro-batch; the planner chooses without")
    steps: Count
    seed: int = 0
    cluster: str = Field(description="path of the cluster's file")
    checkpoint: CheckpointJob = CheckpointJob()
    evaluate: EvaluateJob | None = None
    paced: bool = Field(False, description="imitate slower devices and links by waiting out their priced durations")
    modules: str = Field(".", description="the folder where `module:function` is looked for first")
    timeout: Annotated[float, Field(gt=0)] = Field(60.0, description="seconds that any wait for a rank may take")

    _path: Path = PrivateAttr(default=Path("job.yaml"))
    _of_task: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> "Job":
        if self.micro_batch is not None and self.micro_batch > self.global_batch:
            raise ValueError(f"micro_batch: {self.micro_batch} is more than the global batch, {self.global_batch}")
        if (self.data is None) == (not self.tasks):
            raise ValueError("give either data or tasks")
        if self.tasks and (self.outputs or self.evaluate is not None):
            raise ValueError("outputs, evaluate: with tasks each task has its own; give them there")
        unknown = [name for name in (self.evaluate.outputs if self.evaluate else ()) if name not in self.outputs]
        if unknown:
            raise ValueError(f"evaluate.outputs: {unknown[0]!r} is not one of outputs, {list(self.outputs)}")
        return self

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The job in the file at ``path``, which it remembers; raises FileError."""
        job = super().load(path)
        job._path = Path(path).resolve()  # noqa: SLF001
        return job

    @property
    def path(self) -> Path:
        """The job's file."""
        return self._path

    def where(self, field: str) -> str:
        """File and field, as messages begin; a field that is a task's own with the task."""
        return f"{self._path}: {self._of_task.get(field.partition('.')[0], '')}{field}"

    @property
    def branches_field(self) -> str:
        """The field that gives the description by hand, with its file."""
        return self.where("branches" if "branches" in self._of_task else "model.branches")

    def of_task(self, name: str) -> "Job":
        """A task as a job of its own: with that task's data, loss and evaluation."""
        task = self.tasks[name]
        changes = {
            "tasks": {},
            "data": task.data,
            "loss": task.loss or self.loss,
            "model": self.model.model_copy(update={"branches": task.branches or self.model.branches}),
            "outputs": task.outputs,
            "evaluate": task.evaluate,
        }
        found = self.model_copy(update=changes)
        found._of_task = dict.fromkeys(task.model_fields_set, f"tasks.{name}.")  # noqa: SLF001
        return found

    @property
    def modules_folder(self) -> Path:
        """Where the job's own modules are."""
        return self.beside(self.modules)

    def beside(self, path: str) -> Path:
        """``path`` as the job file means it."""
        return (self._path.parent / path).resolve()

    @property
    def metric_outputs(self) -> tuple[str, ...]:
        """What the metric reads."""
        return (self.evaluate.outputs if self.evaluate else ()) or self.outputs

    def moved(self, path: Path, changes: Mapping[str, Any]) -> "Job":
        """The job with other top-level fields, written to ``path``; its paths and modules are still found."""
        here = {"cluster": str(self.beside(self.cluster)), "modules": str(self.modules_folder)}
        if self.weights is not None:
            here["weights"] = str(self.beside(self.weights))
        self.model_copy(update={**here, **changes}).save(path)
        return Job.load(path)

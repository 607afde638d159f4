"""The job's model, with random weights by the job's seed, or without memory for them until the engine needs them."""

from typing import TYPE_CHECKING, Any

from plait.errors import FileError, PlaitError
from plait.job.job import Job
from plait.job.resolve import call, resolve

if TYPE_CHECKING:
    from torch import nn

    from plait.model.by_hand import Branches


def model_of(job: Job, *, late: bool = False) -> "nn.Module":
    """The job's model; ``late``: without memory for its weights, which the engine makes, where its code allows that.

    Raises FileError naming the field that is wrong.
    """
    import torch

    make = _maker(job)
    torch.manual_seed(job.seed)
    model = _without_memory(make) if late else None
    if model is None:
        torch.manual_seed(job.seed)
        model = make()
    if not isinstance(model, torch.nn.Module):
        raise FileError(f"{job.path}: model.factory: {job.model.factory} gives a {type(model).__name__}, no nn.Module")
    return model


def light_model_of(job: Job) -> "nn.Module":
    """The job's model, without memory for its weights if they take more than half of the machine's."""
    from plait.cluster.probe import machine_memory

    model = model_of(job, late=True)
    fits = sum(parameter.nbytes for parameter in model.parameters()) <= machine_memory() / 2
    return model_of(job) if fits and any(p.is_meta for p in model.parameters()) else model


def loss_of(job: Job) -> Any:
    """The job's own loss; None where the model has one. Raises FileError naming the field."""
    return resolve(job.loss, job.modules_folder, job.where("loss")) if job.loss else None


def branches_of(job: Job, model: "nn.Module") -> "Branches | None":
    """The job's description of its model; None where it is traced. Raises FileError naming the field."""
    from plait.model.by_hand import Branches

    reference, where = job.model.branches, job.branches_field
    if reference is None:
        return None
    found = call(resolve(reference, job.modules_folder, where), {}, where, model)
    if not isinstance(found, Branches):
        raise FileError(f"{where}: {reference} gives a {type(found).__name__}, no plait.Branches")
    return found


def _without_memory(make: Any) -> "nn.Module | None":
    """The model, deferred; None where it can only be built as usual, or not at all, as an ordinary build tells."""
    from plait.model.deferred import deferred

    try:
        return deferred(make)
    except Exception:  # the model's code may raise anything where a tensor has no values
        return None


def _maker(job: Job) -> Any:
    folder, where = job.modules_folder, f"{job.path}: model"
    if job.model.factory is not None:
        factory = resolve(job.model.factory, folder, f"{where}.factory")
        return lambda: call(factory, job.model.options, f"{where}.options")
    reference = str(job.model.of_class)
    found = resolve(reference, folder, f"{where}.class")
    config_class = getattr(found, "config_class", None)
    if config_class is None:
        raise FileError(f"{where}.class: {reference} has no config_class; make it by a factory instead")
    try:
        config = call(config_class, job.model.config, f"{where}.config")
    except PlaitError:
        raise
    except Exception as error:  # configs raise errors of their own library
        raise FileError(f"{where}.config: {config_class.__name__} refuses it: {error}") from error
    return lambda: found(config)

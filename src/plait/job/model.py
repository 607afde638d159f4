"""The job's model, with random weights by the job's seed, or empty where they come from a folder."""

from typing import TYPE_CHECKING, Any

from plait.errors import FileError, PlaitError
from plait.job.job import Job
from plait.job.resolve import call, resolve

if TYPE_CHECKING:
    from torch import nn


def model_of(job: Job, *, empty: bool = False) -> "nn.Module":
    """The job's model; ``empty``: its parameters take no memory. Raises FileError naming the field that is wrong."""
    import torch

    from plait.runtime.weights import build_empty

    make = _maker(job)
    torch.manual_seed(job.seed)
    model = build_empty(make) if empty else make()
    if not isinstance(model, torch.nn.Module):
        raise FileError(f"{job.path}: model.factory: {job.model.factory} gives a {type(model).__name__}, no nn.Module")
    return model


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

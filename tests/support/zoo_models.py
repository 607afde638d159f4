"""The zoo's models as tests and tables run them: the same weights each time, eight samples, no dropout."""

import functools
import inspect
from collections.abc import Callable

import torch
from torch import nn

from plait.model import zoo
from support.jobs import Maker

SAMPLES = 8


def make(name: str) -> zoo.Example:
    """The model ``name`` of the zoo and a batch."""
    torch.manual_seed(3)
    builder: Callable[..., zoo.Example] = getattr(zoo, name)
    options = {"dropout": 0.0} if "dropout" in inspect.signature(builder).parameters else {}
    model, batch = builder(samples=SAMPLES, **options)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, batch


def maker(name: str) -> Maker:
    """``make`` for one model; ranks can be sent it."""
    return functools.partial(make, name)

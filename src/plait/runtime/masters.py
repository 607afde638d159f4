"""Master weights: fp32 copies that the optimizer steps, for parameters that compute in fewer bits."""

from collections.abc import Iterable, Mapping

import torch
from torch import nn


class Masters:
    """Masters of the parameters of one rank that learn, by name. Their ``grad`` is summed in fp32 too.

    Made of the parameters' values before these are cast, so that no digit is lost.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = {n: nn.Parameter(p.detach().clone().float()) for n, p in parameters.items()}
        self._pairs = [(parameters[name], master) for name, master in self.parameters.items()]
        self._of = {id(parameter): master for parameter, master in self._pairs}

    def collect(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the gradients of these parameters, of one micro-batch, to their masters'."""
        for parameter in parameters:
            master = self._of.get(id(parameter))
            if master is None or parameter.grad is None:
                continue
            gradient = parameter.grad.to(master.dtype)
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters' values to the parameters."""
        for parameter, master in self._pairs:
            parameter.copy_(master)

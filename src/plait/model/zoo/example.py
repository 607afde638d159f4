"""What each model of the zoo comes as."""

from torch import Tensor, nn

Example = tuple[nn.Module, dict[str, Tensor]]
"""A model in training mode, and a batch for it."""

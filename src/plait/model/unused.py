"""Arguments that a layer is given but does nothing with.

A decoder often hands every layer all it has, an image's features too, though few of them attend to the image. Left
as it is, such an argument would be an interaction, and travel to layers that have no use for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

Run = Callable[[Sequence[Tensor | None]], Any]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operations that run and the tensors that they take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []
        self.taken: set[int] = set()
        self._alive: list[Any] = []
        """What was taken, so that no tensor's id is used again meanwhile."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        self.note((args, kwargs))
        return func(*args, **(kwargs or {}))

    def note(self, value: Any) -> None:
        """Count the tensors in ``value`` as taken."""
        self._alive.append(value)
        self.taken |= {id(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)}


def run_and_find_unused(run: Run, inputs: Sequence[Tensor]) -> tuple[Any, frozenset[int]]:
    """``run(inputs)``, and the positions of the inputs for which None does as well.

    No operation takes these, and without them the same operations run.
    """
    with Operations() as first:
        result = run(inputs)
    first.note(result)
    unused = frozenset(i for i, tensor in enumerate(inputs) if id(tensor) not in first.taken)
    if unused and not _same_without(run, [None if i in unused else t for i, t in enumerate(inputs)], first.names):
        unused = frozenset()
    return result, unused


def _same_without(run: Run, inputs: Sequence[Tensor | None], names: Sequence[str]) -> bool:
    try:
        with Operations() as second:
            run(inputs)
    except Exception:  # the layer's own code may raise anything where it misses an argument
        return False
    same: bool = second.names == list(names)
    return same

"""How much memory real tensors take while something runs."""

import weakref
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class RealBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the real tensors that operations give within it: ``peak`` of those alive at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[int, int] = {}
        """Address of a storage → how many tensors hold it."""
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) and not leaf.is_meta:
                self._add(leaf)
        return result

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        self._alive[address] = self._alive.get(address, 0) + 1
        if self._alive[address] == 1:
            self._bytes += size
        self.peak = max(self.peak, self._bytes)
        weakref.finalize(tensor, self._drop, address, size)

    def _drop(self, address: int, size: int) -> None:
        self._alive[address] -= 1
        if not self._alive[address]:
            self._bytes -= size

"""A plain engine for tests: stages run micro-batch by micro-batch in one process, as the rules for scopes say."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from plait.model.capture import Captured
from plait.model.graph import Scope, TensorSpec
from plait.model.stages import Stage, build_stage
from plait.model.streams import Stream


class Pipeline:
    """Stages of ``captured`` cut as ``cuts`` says (lists of layer names)."""

    def __init__(self, captured: Captured, cuts: Sequence[Sequence[str]]) -> None:
        self.captured = captured
        self.stages = [build_stage(captured, names) for names in cuts]

    def loss(self, batch: Mapping[str, Tensor], sizes: Sequence[int], step: int = 0) -> Tensor:
        """The loss over ``batch`` in micro-batches of ``sizes`` samples."""
        values = self.values(batch, sizes, step)
        graph = self.captured.graph
        parts = self.split(batch, graph.inputs, sizes)
        total = torch.zeros(())
        for term in graph.losses:
            weights = [float(self.captured.count(term, part)) for part in parts]
            if term.scope is Scope.BATCH:
                total = total + term.coefficient * values[-1][term.value]
                continue
            for weight, found in zip(weights, values, strict=False):
                total = total + term.coefficient * weight / sum(weights) * found[term.value]
        return total

    def values(self, batch: Mapping[str, Tensor], sizes: Sequence[int], step: int = 0) -> list[dict[str, Tensor]]:
        """All values of each micro-batch, and at the end those over the whole batch."""
        specs = self.captured.graph.inputs | self.captured.graph.values
        found: list[dict[str, Tensor]] = [dict(p) for p in self.split(batch, specs, sizes)]
        whole = dict(batch)
        for stage in self.stages:
            if self.is_batch(stage):
                for name in stage.reads:
                    if name not in whole:
                        whole[name] = join([f[name] for f in found], specs[name])
                made = stage(whole, Stream(0, step, -1))
                whole |= made
                for part, shares in zip(found, self.split(made, specs, sizes), strict=True):
                    part |= shares
            else:
                for index, part in enumerate(found):
                    part |= stage(part, Stream(0, step, index))
        return [*found, whole]

    def is_batch(self, stage: Stage) -> bool:
        """Whether the stage needs the whole batch."""
        names = {name for name, s in zip(self.names, self.stages, strict=True) if s is stage}
        return any(self.captured.graph.by_name[n].scope is Scope.BATCH for group in names for n in group)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """Layer names of each stage."""
        order = self.captured.graph.producers
        found = []
        for stage in self.stages:
            found.append(tuple(dict.fromkeys(order[w] for w in stage.writes)))
        return found

    @staticmethod
    def split(
        values: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], sizes: Sequence[int]
    ) -> list[dict[str, Tensor]]:
        """``values`` cut into micro-batches."""
        parts: list[dict[str, Tensor]] = [{} for _ in sizes]
        for name, tensor in values.items():
            dim = specs[name].batch_dim if name in specs else 0
            if dim is None:
                cut: Sequence[Tensor] = [tensor] * len(sizes)
            else:
                cut = tensor.split([s * specs[name].shape[dim] for s in sizes], dim)
            for part, share in zip(parts, cut, strict=True):
                part[name] = share
        return parts


def join(tensors: Sequence[Tensor], spec: TensorSpec) -> Tensor:
    """Micro-batches' values as one."""
    return tensors[0] if spec.batch_dim is None else torch.cat(list(tensors), spec.batch_dim)


def cuts(captured: Captured, length: int) -> list[list[str]]:
    """Stages of at most ``length`` layers of one branch and scope."""
    found: list[list[str]] = []
    open_stage: dict[tuple[str, str], list[str]] = {}
    for layer in captured.graph.layers:
        key = (layer.branch, layer.scope)
        if key not in open_stage or len(open_stage[key]) >= length:
            open_stage[key] = []
            found.append(open_stage[key])
        open_stage[key].append(layer.name)
    return found


def same(found: Tensor, expected: Tensor, what: str = "") -> None:
    """The bound of plan invariance: max|Δ| ≤ 1e-5·max|ref| + 1e-8."""
    found, expected = found.detach(), expected.detach()
    difference = float((found - expected).abs().max())
    bound = 1e-5 * float(expected.abs().max()) + 1e-8
    assert difference <= bound, f"{what}: off by {difference:.3g}, allowed {bound:.3g}"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by name; the model's are cleared."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def pipeline() -> Callable[[Captured, int], Pipeline]:
    """Builds a pipeline with stages of at most so many layers."""
    return lambda captured, length: Pipeline(captured, cuts(captured, length))

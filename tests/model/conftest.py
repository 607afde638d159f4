"""A plain engine for tests: stages run micro-batch by micro-batch in one process, as the rules for scopes say."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn

from plait.model.capture import Captured
from plait.model.graph import Scope, TensorSpec
from plait.model.stages import build_stage
from plait.model.streams import Stream


class Pipeline:
    """Stages of ``captured`` cut as ``cuts`` says (lists of layer names)."""

    def __init__(self, captured: Captured, cuts: Sequence[Sequence[str]]) -> None:
        self.captured = captured
        self.specs = captured.graph.inputs | captured.graph.values
        self.stages = [build_stage(captured, names) for names in cuts]
        self.batch = [captured.graph.by_name[names[0]].scope is Scope.BATCH for names in cuts]

    def loss(self, batch: Mapping[str, Tensor], sizes: Sequence[int], step: int = 0) -> Tensor:
        """The loss over ``batch`` in micro-batches of ``sizes`` samples."""
        *values, whole = self.values(batch, sizes, step)
        parts = self.split(batch, sizes)
        total = torch.zeros(())
        for term in self.captured.graph.losses:
            if term.scope is Scope.BATCH:
                total = total + term.coefficient * whole[term.value]
                continue
            weights = [float(self.captured.count(term, part)) for part in parts]
            for weight, found in zip(weights, values, strict=True):
                total = total + term.coefficient * weight / sum(weights) * found[term.value]
        return total

    def values(self, batch: Mapping[str, Tensor], sizes: Sequence[int], step: int = 0) -> list[dict[str, Tensor]]:
        """All values of each micro-batch, and at the end those over the whole batch."""
        found = self.split(batch, sizes)
        whole = dict(batch)
        for stage, needs_all in zip(self.stages, self.batch, strict=True):
            if needs_all:
                whole |= {n: join([f[n] for f in found], self.specs[n]) for n in stage.reads if n not in whole}
                made = stage(whole, Stream(0, step, -1))
                whole |= made
                for part, shares in zip(found, self.split(made, sizes), strict=True):
                    part.update(shares)
            else:
                for index, part in enumerate(found):
                    part.update(stage(part, Stream(0, step, index)))
        whole |= {n: join([f[n] for f in found], self.specs[n]) for n in self.captured.graph.outputs.values()}
        return [*found, whole]

    def split(self, values: Mapping[str, Tensor], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
        """``values`` cut into micro-batches."""
        shares = {name: self._shares(tensor, self.specs[name], sizes) for name, tensor in values.items()}
        return [{name: cut[index] for name, cut in shares.items()} for index in range(len(sizes))]

    @staticmethod
    def _shares(tensor: Tensor, spec: TensorSpec, sizes: Sequence[int]) -> Sequence[Tensor]:
        if spec.batch_dim is None:
            return [tensor] * len(sizes)
        return torch.split(tensor, [s * spec.shape[spec.batch_dim] for s in sizes], spec.batch_dim)


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


def same(found: Tensor, expected: Tensor, what: str = "", noise: float = 1e-8) -> None:
    """The bound of plan invariance: max|Δ| ≤ 1e-5·max|ref| + noise."""
    found, expected = found.detach(), expected.detach()
    difference = float((found - expected).abs().max())
    bound = 1e-5 * float(expected.abs().max()) + noise
    assert difference <= bound, f"{what}: off by {difference:.3g}, allowed {bound:.3g}"


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Gradients by name; the model's are cleared."""
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def run_model(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the model itself."""
    switches = {"return_loss": True} if type(model).__name__ == "CLIPModel" else {}
    result = model(**{n: t.clone() for n, t in batch.items()}, **switches)
    loss: Tensor = result if isinstance(result, Tensor) else result["loss"]
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), gradients(model)


def check_equal(captured: Captured, batch: Mapping[str, Tensor], length: int, sizes: Sequence[int]) -> None:
    """Stages of ``length`` layers over micro-batches of ``sizes`` give the model's own loss and gradients."""
    expected, reference = run_model(captured.model, batch)
    loss = Pipeline(captured, cuts(captured, length)).loss(batch, sizes)
    loss.backward()  # type: ignore[no-untyped-call]
    found = gradients(captured.model)
    same(loss, expected, "loss")
    assert found.keys() == reference.keys()
    # A gradient that is zero in exact arithmetic, as an attention key's bias, is noise of the largest ones' digits.
    noise = 1e-8 * max(1.0, *(float(g.abs().max()) for g in reference.values()))
    for name, gradient in reference.items():
        same(found[name], gradient, name, noise)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def equal_to_model() -> Callable[[Captured, Mapping[str, Tensor], int, Sequence[int]], None]:
    """Checks loss and gradients of stages against the model's."""
    return check_equal


@pytest.fixture
def pipeline() -> Callable[[Captured, int], Pipeline]:
    """Builds a pipeline with stages of at most so many layers."""
    return lambda captured, length: Pipeline(captured, cuts(captured, length))

"""Profiling gives every layer a price and leaves the model as it was."""

import pytest
import torch
from torch import Tensor, nn

from plait.cluster.spec import Device
from plait.cost.profile import kinds, profile
from plait.cost.table import CostTable, TableCosts, kind_of
from plait.cost.timing import Trial, cpu_timer, held_bytes
from plait.errors import CostError
from plait.model.capture import Captured, capture
from plait.model.graph import BranchGraph, Layer, Parameter, Scope, TensorSpec

BATCH = {"a": torch.randn(6, 8), "b": torch.randn(6, 8)}


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.drop(self.down(torch.relu(self.up(x))))
        return x + added


class _Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = _Tower(), _Tower()

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        scores = self.one(a) @ self.two(b).T
        return {"loss": nn.functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))}


@pytest.fixture(scope="module")
def captured() -> Captured:
    torch.manual_seed(0)
    return capture(_Towers().train(), BATCH)


def test_every_layer_has_a_price_and_batch_scope_only_at_the_global_batch(captured: Captured) -> None:
    rounds: list[tuple[int, int]] = []
    table = profile(
        captured, BATCH, [2, 4], global_batch=8, repeats=2, warmup=1, progress=lambda a, b: rounds.append((a, b))
    )
    assert rounds == [(1, 3), (2, 3), (3, 3)]
    assert table.device_type == "local"
    assert table.versions["torch"] == torch.__version__
    assert table.step_seconds_per_byte > 0
    costs = TableCosts(captured.graph, table)
    local = Device(name="s/n/0", site="s", node="n", type="local", like="local", speed=1.0, memory=1e9)
    for layer in captured.graph.layers:
        batch = layer.scope is Scope.BATCH
        assert sorted(table.layers[kind_of(captured.graph, layer.name)]) == ([8] if batch else [2, 4])
        cost = costs.layer(layer.name, local, 8 if batch else 3)
        assert cost.forward > 0
        assert cost.backward > 0
        assert cost.held_bytes > 0
        flows = any(captured.graph.values[v].gradient for v in layer.reads)
        assert (cost.input_gradient > 0) == flows
        assert layer.trainable or cost.weight_gradient == 0
    assert CostTable.parse(table.dump()) == table


def test_alike_layers_are_measured_once(captured: Captured) -> None:
    found = kinds(captured.graph)
    assert len(found) < len(captured.graph.layers)
    assert {x.signature for x in found.values()} == {x.signature for x in captured.graph.layers}


def test_the_model_its_gradients_the_threads_and_the_random_state_are_left_alone(captured: Captured) -> None:
    model = captured.model
    gradient = torch.ones(8, 32)
    weight = model.one.layers[0].down.weight  # type: ignore[union-attr, index]
    weight.grad = gradient
    before = {n: t.clone() for n, t in model.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    profile(captured, BATCH, [2], repeats=1, warmup=0, threads=2)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert weight.grad is gradient
    assert torch.equal(gradient, torch.ones(8, 32))
    assert sum(p.grad is not None for p in model.parameters()) == 1
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    weight.grad = None


def test_held_bytes_count_each_storage_once_and_no_parameter() -> None:
    class Code(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
            hidden = values["x"] @ self.weight  # holds x
            return {"y": hidden * hidden}  # holds hidden, twice

    assert held_bytes(Code(), {"x": torch.randn(5, 8, requires_grad=True)}) == 2 * 5 * 8 * 4


def test_a_frozen_layer_has_no_weight_gradient_and_what_no_gradient_reaches_none_at_all() -> None:
    class Code(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64).requires_grad_(False)

        def forward(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"y": self.layer(values["x"])}

    values = {"x": torch.randn(16, 64)}
    frozen, root = Trial(Code(), values, ("x",)), Trial(Code(), values, ())
    for trial in (frozen, root):
        trial.run(cpu_timer, keep=False)
        trial.run(cpu_timer, keep=True)
        assert len(trial.forward) == 1
    assert frozen.result().input_gradient > 0
    assert frozen.result().weight_gradient == 0
    assert (root.result().input_gradient, root.result().weight_gradient, root.result().held) == (0, 0, 0)


def test_a_layer_whose_inputs_need_no_gradient_is_another_kind_than_its_likes() -> None:
    flowing = TensorSpec(shape=(1, 8), dtype="float32", gradient=True)
    still = TensorSpec(shape=(1, 8), dtype="float32")
    weight = Parameter(name="w", shape=(8,), dtype="float32")
    graph = BranchGraph(
        model="M",
        inputs={"x": still},
        values={"v0": still, "v1": flowing, "v2": flowing, "v3": flowing},
        layers=(
            Layer(name="l0", branch="b", inputs=("x",), writes=("v0",), signature="root"),
            *(
                Layer(
                    name=f"l{i}",
                    branch="b",
                    reads=(f"v{i - 1}",),
                    writes=(f"v{i}",),
                    parameters=(weight,),
                    signature="s",
                )
                for i in (1, 2, 3)
            ),
        ),
    )
    assert {key: x.name for key, x in kinds(graph).items()} == {"root~root": "l0", "s~root": "l1", "s": "l2"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"micro_batch_sizes": []}, "micro-batch sizes: \\[\\] must be numbers of samples"),
        ({"micro_batch_sizes": [0, 4]}, "each at least 1"),
        ({"global_batch": 0}, "global batch: 0 must be at least 1"),
        ({"repeats": 0}, "repeats: 0 must be at least 1"),
        ({"device": "gpu9"}, "'gpu9' is not a device"),
        ({"device": "meta"}, "'meta' can't be profiled"),
        ({"device": "cuda:99"}, "'cuda:99' is not here; PyTorch sees"),
        ({"example_batch": {"a": BATCH["a"]}}, "it lacks the input 'b' of _Towers"),
    ],
)
def test_what_cannot_be_measured_is_refused(captured: Captured, arguments: dict[str, object], message: str) -> None:
    given = {"captured": captured, "example_batch": BATCH, "micro_batch_sizes": [2]} | arguments
    with pytest.raises(CostError, match=message):
        profile(**given)  # type: ignore[arg-type]


def test_a_model_without_weights_cannot_be_measured() -> None:
    with torch.device("meta"):
        model = _Towers()
    with pytest.raises(CostError, match=r"is on the meta device; a profile runs layers"):
        profile(capture(model, BATCH), BATCH, [2])

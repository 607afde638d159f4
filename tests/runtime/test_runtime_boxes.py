"""Values between stages: joined for a stage that needs the whole batch, divided behind it, summed where shared."""

import torch

from plait.model.graph import TensorSpec
from plait.runtime.boxes import Exchange
from plait.schedule.action import ALL
from plait.schedule.placement import Edge, PlacedStage, Placement, Replica

SPECS = {
    "x": TensorSpec(shape=(1, 2), dtype="float32", gradient=True),
    "last": TensorSpec(shape=(2, 1), dtype="float32", batch_dim=1, gradient=True),
    "bias": TensorSpec(shape=(3,), dtype="float32", batch_dim=None, gradient=True),
}
SIZES = (1, 3)
EACH, WHOLE = (0, 1), (ALL,)


def exchange(*batch_scope: bool) -> Exchange:
    """A chain of stages on one rank, all three values on every edge."""
    stages = tuple(
        PlacedStage(f"s{i}", "b", (Replica(0, WHOLE if whole else EACH),), batch_scope=whole)
        for i, whole in enumerate(batch_scope)
    )
    edges = tuple(Edge(i, i + 1, tuple(SPECS), 8.0) for i in range(len(stages) - 1))
    return Exchange(Placement(1, stages, edges, SIZES), SPECS)


def values(samples: int, start: float = 0.0) -> dict[str, torch.Tensor]:
    return {
        "x": torch.arange(2.0 * samples).view(samples, 2) + start,
        "last": torch.arange(2.0 * samples).view(2, samples) + start,
        "bias": torch.ones(3) + start,
    }


def test_a_whole_batch_stage_gets_the_micro_batches_joined_in_order() -> None:
    boxes = exchange(False, True)
    boxes.put_values(0, 1, values(3, 100.0))
    boxes.put_values(0, 0, values(1))
    found = boxes.take_values(1, ALL)
    assert torch.equal(found["x"], torch.cat([values(1)["x"], values(3, 100.0)["x"]]))
    assert torch.equal(found["last"], torch.cat([values(1)["last"], values(3, 100.0)["last"]], 1))
    assert torch.equal(found["bias"], values(1)["bias"])


def test_its_gradients_are_divided_and_a_shared_value_gets_its_whole_gradient_once() -> None:
    boxes = exchange(False, True)
    whole = values(4)
    boxes.put_gradients(1, ALL, whole)
    first, second = boxes.take_gradients(0, 0), boxes.take_gradients(0, 1)
    assert torch.equal(torch.cat([first["x"], second["x"]]), whole["x"])
    assert torch.equal(torch.cat([first["last"], second["last"]], 1), whole["last"])
    assert torch.equal(first["bias"] + second["bias"], whole["bias"])


def test_behind_a_whole_batch_stage_values_are_divided_and_gradients_joined() -> None:
    boxes = exchange(True, False)
    whole = values(4)
    boxes.put_values(0, ALL, whole)
    parts = [boxes.take_values(1, m) for m in EACH]
    assert torch.equal(torch.cat([p["x"] for p in parts]), whole["x"])
    assert all(torch.equal(p["bias"], whole["bias"]) for p in parts)
    for m, samples in enumerate(SIZES):
        boxes.put_gradients(1, m, values(samples, 10.0 * m))
    found = boxes.take_gradients(0, ALL)
    assert torch.equal(found["x"], torch.cat([values(1)["x"], values(3, 10.0)["x"]]))
    assert torch.equal(found["bias"], values(1)["bias"] + values(3, 10.0)["bias"])


def test_gradients_of_all_readers_are_summed() -> None:
    stages = tuple(PlacedStage(f"s{i}", "b", (Replica(0, EACH),)) for i in range(3))
    edges = (Edge(0, 1, ("x",), 8.0), Edge(0, 2, ("x",), 8.0))
    boxes = Exchange(Placement(1, stages, edges, SIZES), SPECS)
    boxes.put_gradients(1, 0, {"x": torch.ones(1, 2)})
    boxes.put_gradients(2, 0, {"x": torch.full((1, 2), 2.0)})
    assert torch.equal(boxes.take_gradients(0, 0)["x"], torch.full((1, 2), 3.0))

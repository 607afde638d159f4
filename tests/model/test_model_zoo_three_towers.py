"""The three-towers model: a branch for each kind of data, and a loss layer for each pair of them."""

import pytest

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope

TOWERS = {"image": 3, "text": 2, "audio": 2}


@pytest.fixture(scope="module")
def graph() -> BranchGraph:
    return capture(*zoo.three_towers(layers=(3, 2, 2))).graph


def test_each_tower_is_a_branch_of_its_embedding_and_blocks(graph: BranchGraph) -> None:
    for name, blocks in TOWERS.items():
        expected = [f"{name}.embed", *(f"{name}.blocks.{i}" for i in range(blocks))]
        assert [layer.name for layer in graph.branches[name]] == expected


def test_each_pair_of_towers_meets_in_a_layer_of_batch_scope(graph: BranchGraph) -> None:
    pairs: dict[str, set[str]] = {}
    for _, maker, reader in graph.interactions:
        if graph.by_name[maker].branch in TOWERS:
            pairs.setdefault(reader, set()).add(graph.by_name[maker].branch)
    assert sorted(map(sorted, pairs.values())) == [["audio", "image"], ["audio", "text"], ["image", "text"]]
    assert {graph.by_name[reader].scope for reader in pairs} == {Scope.BATCH}

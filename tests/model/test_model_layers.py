"""Which modules are layers, which branch each layer belongs to, and what is repeated rather than sent."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from plait.model.capture import capture
from plait.model.graph import BranchGraph, Scope

WIDTH = 8


def rows(samples: int = 4) -> Tensor:
    return torch.randn(samples, WIDTH)


def graph_of(model: nn.Module, *names: str) -> BranchGraph:
    return capture(model, {name: rows() for name in names}).graph


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(WIDTH, WIDTH // 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.key(x)
        return found


class Block(nn.Module):
    """Lists of heads and of linear layers inside, as many write a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"heads": nn.ModuleList([Head(), Head()])})
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        heads: nn.ModuleList = self.attention["heads"]  # type: ignore[assignment]
        x = x + torch.cat([head(x) for head in heads], -1)
        found: Tensor = x + self.mlp(x)
        return found


class Nested(nn.Module):
    """An encoder of ``depth`` stages, each a list of two blocks."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.ModuleDict({"blocks": nn.ModuleList([Block(), Block()])}) for _ in range(2)]
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            for block in stage["blocks"]:  # type: ignore[index]
                x = block(x)
        loss: Tensor = x.square().mean()
        return loss


def test_a_block_is_one_layer_whatever_lists_it_holds_and_a_stage_of_blocks_is_several() -> None:
    assert [x.name for x in graph_of(Nested(), "x").layers] == [
        f"stages.{stage}.blocks.{block}" for stage in range(2) for block in range(2)
    ]


class Forked(nn.Module):
    """A trunk whose middle also feeds a head with a loss of its own."""

    def __init__(self, *, alike: bool) -> None:
        super().__init__()
        self.trunk = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.upper = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.alike = alike

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.tanh(self.trunk[0](x))
        aside = functional.mse_loss(self.middle(x), y)
        for layer in [self.trunk[1]] if self.alike else self.upper:
            x = torch.tanh(layer(x))
        return functional.l1_loss(x, y) + aside


def test_at_a_fork_the_branch_goes_on_with_its_own_modules() -> None:
    graph = graph_of(Forked(alike=True), "x", "y")
    assert {b: [x.name for x in layers] for b, layers in graph.branches.items()} == {
        "trunk": ["trunk.0", "trunk.1"],
        "middle": ["middle"],
    }


def test_a_fork_into_parts_equally_far_ends_the_branch() -> None:
    assert list(graph_of(Forked(alike=False), "x", "y").branches) == ["trunk", "middle", "upper"]


class Typed(nn.Module):
    """Adds one type embedding, looked up by a constant, at two places far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.types = nn.Embedding(2, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kind = self.types(torch.ones(1, dtype=torch.long)).expand_as(x)
        x = torch.tanh(self.layers[1](torch.tanh(self.layers[0](x + kind))))
        return functional.mse_loss(self.layers[2](x + kind), y)


def test_a_lookup_that_no_sample_decides_is_repeated_where_it_is_used() -> None:
    graph = graph_of(Typed(), "x", "y")
    holders = [x.name for x in graph.layers if "types.weight" in {p.name for p in x.parameters}]
    assert holders == ["layers.0", "layers.1"]  # a sum goes with what it adds to
    assert [x.reads for x in graph.layers] == [(), ("tanh",), ("add_1",)]  # one value from layer to layer


class Contrast(nn.Module):
    """Two matrices of scores, one for each direction, and a term for each."""

    def __init__(self, pairs: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.towers = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("a", "b", "c")})
        self.pairs = pairs

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        found = [self.towers[name](x) for name, x in (("a", a), ("b", b), ("c", c))]
        same = torch.arange(len(a))
        loss: Tensor = found[2].square().mean()
        for i, j in self.pairs:
            loss = loss + functional.cross_entropy(found[i] @ found[j].T, same)
        return loss


@pytest.mark.parametrize(("pairs", "layers"), [(((0, 1), (1, 0)), 1), (((0, 1), (1, 2)), 2)])
def test_terms_over_the_batch_are_one_layer_only_where_they_wait_for_the_same(
    pairs: tuple[tuple[int, int], ...], layers: int
) -> None:
    graph = graph_of(Contrast(pairs), "a", "b", "c")
    assert len([x for x in graph.layers if x.scope is Scope.BATCH]) == layers


class Unrolled(nn.Module):
    """Blocks under names of their own, one of them far heavier than all else."""

    def __init__(self, heavy: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.heavy = Feed(32), Feed(32), heavy

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.heavy(self.b(self.a(x)))
        return result


class Feed(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, inner), nn.Linear(inner, 16)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.relu(self.up(x)))
        return result


class Unequal(nn.Module):
    def __init__(self, heavy: nn.Module) -> None:
        super().__init__()
        self.tower, self.light = Unrolled(heavy), Feed(32)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = (self.tower(x) - self.light(y)).pow(2).mean()
        return loss


def layers_of(model: nn.Module) -> list[str]:
    batch = {"x": torch.randn(4, 16), "y": torch.randn(4, 16)}
    return [layer.name for layer in capture(model, batch).graph.layers if layer.name.startswith("tower")]


def test_blocks_under_names_of_their_own_are_layers_and_one_that_outweighs_the_rest_is_taken_apart() -> None:
    assert layers_of(Unequal(Feed(32))) == ["tower.a", "tower.b", "tower.heavy"]
    assert layers_of(Unequal(Feed(2000))) == ["tower.a", "tower.b", "tower.heavy.up", "tower.heavy.down"]


def test_a_heavy_block_with_a_hook_stays_whole() -> None:
    hooked = Feed(2000)
    hooked.register_forward_hook(doubled)
    assert layers_of(Unequal(hooked))[-1] == "tower.heavy"


def doubled(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
    return result * 2


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)) for _ in range(2))
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        loss: Tensor = (self.head(x) - y).pow(2).mean()
        return loss


def test_what_batch_norm_means_is_told_in_words_and_can_be_overruled_as_told() -> None:
    batch = {"x": torch.randn(4, 16), "y": torch.randn(4, 16)}
    notes = capture(Normed(), batch).graph.notes
    for path in ("blocks.0", "blocks.1"):
        (told,) = [n for n in notes if n.startswith(f"{path}.1 (BatchNorm1d)")]
        assert f"`scopes: {{{path}: microbatch}}`" in told
    graph = capture(Normed(), batch, scopes={"blocks.0": "microbatch", "blocks.1": "microbatch"}).graph
    assert all(layer.scope is Scope.MICROBATCH for layer in graph.layers)

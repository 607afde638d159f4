"""Random models of several branches, from a description that hypothesis draws and that ranks can be sent.

A branch is a chain of blocks. A block may also read any earlier block's result, of its own branch (a skip) or of
another (an interaction), share the weights of an earlier block (a tie), or be frozen. Each loss term reads a few
blocks, over single samples or over all pairs of the batch.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from plait.model import zoo
from support.jobs import Maker

WIDTH = 8
SAMPLES = 8


@dataclass(frozen=True)
class Block:
    """``reads`` are numbers of earlier blocks, the first its predecessor in its branch; the rest are added."""

    branch: int
    reads: tuple[int, ...]
    tied: int | None = None
    frozen: bool = False
    attends: bool = False
    """Mixes what it reads from elsewhere by attention over positions; otherwise adds it."""


@dataclass(frozen=True)
class Term:
    """A loss over the mean of ``reads``, against the target or, contrastive, against the mean of ``against``."""

    reads: tuple[int, ...]
    against: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe:
    blocks: tuple[Block, ...]
    terms: tuple[Term, ...]


class _Chunk(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, others: Sequence[Tensor], attends: bool) -> Tensor:
        for other in others:
            x = x + (functional.scaled_dot_product_attention(x, other, other) if attends else other)
        result: Tensor = x + self.outer(functional.gelu(self.inner(self.norm(x))))
        return result


class RandomModel(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        branches = sorted({b.branch for b in recipe.blocks})
        self.stems = nn.ModuleDict({str(b): nn.Linear(WIDTH, WIDTH) for b in branches})
        chunks: list[_Chunk] = []
        for block in recipe.blocks:
            chunks.append(_Chunk() if block.tied is None else chunks[block.tied])
            if block.frozen:
                chunks[-1].requires_grad_(False)
        self.branches = nn.ModuleDict({str(b): nn.ModuleDict() for b in branches})
        for number, (block, chunk) in enumerate(zip(recipe.blocks, chunks, strict=True)):
            branch = self.branches[str(block.branch)]
            assert isinstance(branch, nn.ModuleDict)
            branch[str(number)] = chunk
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, target: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        made: list[Tensor] = []
        for number, block in enumerate(self.recipe.blocks):
            own = block.reads[:1] if block.reads and self.recipe.blocks[block.reads[0]].branch == block.branch else ()
            x = made[own[0]] if own else self.stems[str(block.branch)](inputs[f"input_{block.branch}"])
            others = [made[n] for n in block.reads if n not in own]
            branch: Any = self.branches[str(block.branch)]
            made.append(branch[str(number)](x, others, block.attends))
        return {"loss": torch.stack([self._term(term, made, target) for term in self.recipe.terms]).sum()}

    def _term(self, term: Term, made: Sequence[Tensor], target: Tensor) -> Tensor:
        one = torch.stack([made[n] for n in term.reads]).mean(0).mean(1)
        if not term.against:
            return functional.mse_loss(one, target)
        two = torch.stack([made[n] for n in term.against]).mean(0).mean(1)
        scores = functional.normalize(one, dim=-1) @ functional.normalize(two, dim=-1).T * self.scale
        return functional.cross_entropy(scores, torch.arange(len(scores)))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Two or three branches of one to four blocks each."""
    branches = draw(st.integers(2, 3))
    order = draw(st.permutations([b for b in range(branches) for _ in range(draw(st.integers(1, 4)))]))
    blocks: list[Block] = []
    for number, branch in enumerate(order):
        mine = [i for i, b in enumerate(blocks) if b.branch == branch]
        extra = draw(st.lists(st.integers(0, number - 1), max_size=2, unique=True)) if number else []
        reads = tuple(dict.fromkeys([*mine[-1:], *extra]))
        tied = draw(st.one_of(st.none(), st.none(), st.sampled_from(range(number)))) if number else None
        blocks.append(Block(branch, reads, tied, draw(st.integers(0, 3)) == 0, draw(st.booleans())))
    ends = tuple(max(i for i, b in enumerate(blocks) if b.branch == branch) for branch in range(branches))
    terms = [Term(ends)] if draw(st.booleans()) else [Term(ends[:1], ends[1:])]
    for _ in range(draw(st.integers(0, 2))):
        some = draw(st.lists(st.sampled_from(range(len(blocks))), min_size=1, max_size=2, unique=True))
        terms.append(Term(tuple(some)))
    return Recipe(tuple(blocks), tuple(terms))


def make(recipe: Recipe) -> zoo.Example:
    torch.manual_seed(5)
    model = RandomModel(recipe)
    batch = {f"input_{b}": torch.randn(SAMPLES, 4, WIDTH) for b in sorted({x.branch for x in recipe.blocks})}
    return model, {"target": torch.randn(SAMPLES, WIDTH), **batch}


def maker(recipe: Recipe) -> Maker:
    return functools.partial(make, recipe)

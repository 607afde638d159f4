"""Every model of the zoo through capture, three partitions and real processes: the table of docs/models.md.

For each model: the branches found, layers, interactions, the places where it may be cut, the largest error of a
gradient over three partitions run by three ranks, and the seconds that capture takes.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from output import Target, options, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from plait.model import zoo
from plait.model.capture import capture
from plait.model.graph import BranchGraph
from support import gradients, zoo_models
from support.pool import Pool

RANKS = 3
QUICK = ("clip", "llava", "t5", "two_towers")
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
HEADS = ("Model", "Branches", "Layers", "Interactions", "Cuts", "Gradient error", "Capture")


@dataclass(frozen=True)
class Row:
    """One model. ``error`` is the largest difference of a gradient as a share of what plan invariance allows."""

    model: str
    branches: dict[str, int]
    layers: int
    interactions: int
    cuts: int
    error: float
    seconds: float

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, in the order of HEADS."""
        branches = ", ".join(f"{name} {count}" for name, count in self.branches.items())
        numbers = (str(self.layers), str(self.interactions), str(self.cuts))
        return (self.model, branches, *numbers, f"{self.error:.2f}", f"{self.seconds:.1f} s")


def shape(graph: BranchGraph) -> tuple[dict[str, int], int, int, int]:
    """Layers of each branch, all layers, interactions, and edges of layers that a cut may lie on."""
    branches = {name: len(layers) for name, layers in graph.branches.items()}
    edges = {(graph.producers[value], layer.name) for layer in graph.layers for value in layer.reads}
    return branches, len(graph.layers), len(graph.interactions), len(edges)


def measure(name: str, ranks: Pool) -> Row:
    """Capture ``name``, and run it in three partitions."""
    make = zoo_models.maker(name)
    model, batch = make()
    start = time.perf_counter()
    graph = capture(model, batch).graph
    seconds = time.perf_counter() - start
    error = max(error for _, error in gradients.errors(ranks, make, graph))
    return Row(name, *shape(graph), error, seconds)


def measured(names: Sequence[str]) -> Iterator[Row]:
    """A row for each model."""
    pool = Pool(RANKS)
    try:
        capture(*zoo_models.make("two_towers"))  # the first capture also imports half of torch
        for name in names:
            yield measure(name, pool)
    finally:
        pool.close()


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for the docs."""
    lines = [HEADS, ("---",) * len(HEADS), *(row.cells for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def put(page: Path, table: str) -> None:
    """Replace what stands between the page's two marks."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{table}\n{END}{tail}")


def _arguments() -> argparse.Namespace:
    parser = options(__doc__ or "")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="put the table into this page, between its marks")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="these models of the zoo alone")
    return parser.parse_args()


def main() -> None:
    """Measure, print, write."""
    given = _arguments()
    names = given.models or (QUICK if given.quick else [name for name in zoo.__all__ if name.islower()])
    table = Table(*HEADS)
    rows = []
    for row in measured(names):
        rows.append(row)
        table.add_row(*row.cells)
    Console(width=160).print(table)
    worst = max(row.error for row in rows)
    targets = [Target("largest gradient error, share of what plan invariance allows", 1.0, worst, worst <= 1.0)]
    write(given.json, targets, [asdict(row) for row in rows])
    if given.docs:
        put(given.docs, markdown(rows))


if __name__ == "__main__":
    main()

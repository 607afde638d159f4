"""Capture of a large model without memory for its weights: three towers of 300 blocks in all, on the meta device.

For each number of blocks: the weights' bytes, the seconds that capture takes, and the most bytes of real memory that
its tensors take at one time (counted in a second capture, since counting takes time).
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from output import Target, options, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from plait.model import zoo
from plait.model.capture import capture
from plait.units import show_bytes
from support.memory import taken

TOWERS, WIDTH = 3, 4096
BLOCKS, QUICK = (60, 300), (60,)
LIMIT = 60.0
"""Seconds."""
MEMORY = 100 * 2**20
"""Bytes."""


@dataclass(frozen=True)
class Row:
    """One model: its blocks, the layers found, bytes of its weights, seconds, bytes of memory."""

    blocks: int
    layers: int
    weights: int
    seconds: float
    real: int

    @property
    def cells(self) -> tuple[str, ...]:
        """As text."""
        numbers = (str(self.blocks), str(self.layers))
        return (*numbers, show_bytes(self.weights), f"{self.seconds:.1f} s", show_bytes(self.real))


def model_of(blocks: int) -> zoo.Example:
    """Three towers of ``blocks`` blocks in all without weights, and a batch with values."""
    count = blocks // TOWERS
    with torch.device("meta"):
        model, _ = zoo.three_towers(layers=(count, count, count), width=WIDTH)
    return model, zoo.three_towers()[1]


def measure(blocks: int) -> Row:
    """Capture a model of so many blocks, twice."""
    model, batch = model_of(blocks)
    start = time.perf_counter()
    graph = capture(model, batch).graph
    seconds = time.perf_counter() - start
    _, real, _ = taken(lambda: capture(model, batch))
    weights = sum(p.nbytes for p in graph.parameters().values())
    return Row(blocks, len(graph.layers), weights, seconds, real)


def targets(rows: Sequence[Row]) -> list[Target]:
    """What the largest model must keep to."""
    last = rows[-1]
    name = f"capture of {last.blocks} layers, three branches, on meta: "
    seconds = Target(f"{name}seconds", LIMIT, last.seconds, last.seconds < LIMIT)
    return [seconds, Target(f"{name}bytes of memory for tensors", MEMORY, last.real, last.real < MEMORY)]


def main() -> None:
    """Measure, print, write."""
    given = options(__doc__ or "").parse_args()
    capture(*zoo.two_towers())  # the first capture also imports half of torch
    rows = [measure(blocks) for blocks in (QUICK if given.quick else BLOCKS)]
    table = Table("Blocks", "Layers", "Weights", "Capture", "Memory")
    for row in rows:
        table.add_row(*row.cells)
    Console(width=100).print(table)
    write(given.json, targets(rows), [asdict(row) for row in rows])


if __name__ == "__main__":
    main()

"""The picture as SVG: one file, without scripts, fonts or anything else from elsewhere."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from plait.errors import FileError
from plait.files import write_text
from plait.model.graph import BranchGraph, Scope
from plait.model.picture.fold import Box
from plait.model.picture.labels import Label, labels
from plait.model.picture.place import FRAME, GAP, LINE, WIDTH, Edge, Frame, Placed, Placement, place
from plait.model.picture.route import Curve, route
from plait.model.picture.words import frozen, lines, shorten, title
from plait.model.tables import show_count
from plait.units import show_bytes

MARGIN = 28.0
HEADER = 74.0
NOTE = 16.0
FILLS = ("#e4eefa", "#fcebdc", "#e3f3e6", "#eee5f7", "#fbe4e8", "#dff2f1", "#f4efd6", "#e9e9ee")
STROKES = ("#3b78c2", "#d9782d", "#3f9d52", "#8657b8", "#c94862", "#2f9692", "#a08a1f", "#6b6b7b")
STYLE = """
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:#1d2330}
.title{font-size:20px;font-weight:600}.sum,.note,.key{fill:#555e6e}
.branch{font-size:13px;font-weight:600}.name{font-weight:600}.size{font-size:11px}
.input{font-size:11px;fill:#555e6e}.loss{font-size:11px;font-weight:600}
.tensor,.bytes{font-size:11px;text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}
.bytes,.loss{fill:#2b5d34}text.batch{fill:#b3261e;font-weight:600}text.weighted{fill:#7a5a00}
.times{font-size:13px;font-weight:600;fill:#555e6e}
path{fill:none}.chain{stroke:#8a93a3;stroke-width:1.4}.skip{stroke:#8a93a3;stroke-width:1.2;stroke-dasharray:2 3}
.interaction{stroke:#2b5d34;stroke-width:1.8}.interaction.batch{stroke:#b3261e}
rect.frame{fill:none;stroke:#8a93a3;stroke-dasharray:5 4}
""".strip()


def save_picture(graph: BranchGraph, path: Path) -> None:
    """Write the picture to ``path``, which must end in ``.svg``; raises FileError."""
    check_suffix(path)
    write_text(path, svg(graph))


def check_suffix(path: Path) -> None:
    """Raise FileError unless ``path`` ends in ``.svg``."""
    if path.suffix.lower() != ".svg":
        raise FileError(f"{path}: a graph is drawn as SVG; give a name that ends in .svg, such as {path.stem}.svg")


def svg(graph: BranchGraph) -> str:
    """The picture's text."""
    made = place(graph)
    texts = labels(made, graph)
    left = min([0.0, *(label.left for label in texts), *(route(e).left for e in made.edges)])
    inside = max(made.width + GAP - left, 740.0)
    notes = _notes(graph, int(inside / 6.6))
    width = inside + 2 * MARGIN
    height = HEADER + made.height + GAP + NOTE * len(notes) + 2 * MARGIN
    body = "\n".join(
        [*_header(graph), *_body(made, texts, graph, MARGIN - left), *_footer(notes, HEADER + made.height + GAP)]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label={quoteattr("Branch graph of " + graph.model)}>\n'
        f"<style>{STYLE}</style>\n{_arrows()}\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _arrows() -> str:
    colours = {"chain": "#8a93a3", "microbatch": "#2b5d34", "batch": "#b3261e"}
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:{colour}"/></marker>'
        for name, colour in colours.items()
    )
    return f"<defs>{heads}</defs>"


def _header(graph: BranchGraph) -> Iterator[str]:
    parameters = graph.parameters()
    items = sum(math.prod(p.shape) for p in parameters.values())
    size = show_bytes(sum(p.nbytes for p in parameters.values()))
    flops = show_count(sum(layer.flops for layer in graph.layers))
    yield _text(MARGIN, MARGIN + 14, graph.model, "title")
    yield _text(
        MARGIN,
        MARGIN + 36,
        f"{len(graph.branches)} branches · {len(graph.layers)} layers · {show_count(items)} parameters ({size}) · "
        f"{flops}FLOP forward per sample",
        "sum",
    )
    yield _text(
        MARGIN,
        MARGIN + 54,
        "Thick arrows: interactions, with tensor, bytes per sample, scope; red ones need the whole batch. "
        "Sizes: of one layer.",
        "key",
    )


def _body(made: Placement, texts: Sequence[Label], graph: BranchGraph, left: float) -> Iterator[str]:
    colour = {branch: index % len(FILLS) for index, branch in enumerate(graph.branches)}
    yield f'<g transform="translate({left:.0f} {MARGIN + HEADER:.0f})">'
    yield from (_frame(frame) for frame in made.frames)
    yield from (_edge(edge) for edge in made.edges)
    yield from _chains(made)
    for placed in made.boxes:
        yield from _box(placed, graph, colour[placed.box.branch])
    for label in texts:
        yield from _label(label)
    yield "</g>"


def _box(placed: Placed, graph: BranchGraph, colour: int) -> Iterator[str]:
    box = placed.box
    if placed.begins:
        layers = len(graph.branches[box.branch])
        count = f" · {layers} layers" if layers > 1 else ""
        yield _text(placed.x, placed.y - 8, shorten(box.branch, 24) + count, "branch", STROKES[colour])
    dash = ' stroke-dasharray="6 3"' if box.first.scope is Scope.BATCH else ""
    fill = "#f3f4f6" if frozen(box.layers) else FILLS[colour]
    yield f"<g><title>{escape(_tooltip(box))}</title>"
    for behind in (8, 4) if len(box.layers) > 1 else ():
        yield _rect(placed.x + behind, placed.y + behind, placed.height, "#ffffff", STROKES[colour], "")
    yield _rect(placed.x, placed.y, placed.height, fill, STROKES[colour], dash)
    yield _text(placed.x + 10, placed.y + LINE + 3, title(box), "name")
    for index, words in enumerate(lines(box, graph), 2):
        yield _text(placed.x + 10, placed.y + LINE * index + 3, words.text, words.style)
    yield "</g>"


def _rect(x: float, y: float, height: float, fill: str, stroke: str, dash: str) -> str:
    place = f'x="{x:.0f}" y="{y:.0f}" width="{WIDTH:.0f}" height="{height:.0f}"'
    return f'<rect {place} rx="6" fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dash}/>'


def _tooltip(box: Box) -> str:
    """Shown by browsers: the whole names of a box's layers."""
    names = [layer.name for layer in box.layers]
    return "\n".join(names if len(names) <= 40 else [*names[:39], f"… {names[-1]} ({len(names)} layers)"])


def _frame(frame: Frame) -> str:
    width, height = WIDTH + 2 * FRAME + 8, frame.bottom - frame.y
    place = f'x="{frame.x:.0f}" y="{frame.y:.0f}" width="{width:.0f}" height="{height:.0f}"'
    times = _text(frame.x + width - 8, frame.y + height - 6, f"× {frame.times}", "times", end=True)
    return f'<rect class="frame" {place} rx="8"/>{times}'


def _chains(made: Placement) -> Iterator[str]:
    """From each box to the next one of its branch."""
    last: dict[str, Placed] = {}
    for placed in made.boxes:
        before = last.get(placed.box.branch)
        if before is not None:
            start = before.bottom + (8 if len(before.box.layers) > 1 else 0)
            d = f"M{before.middle:.0f} {start:.0f}V{placed.y:.0f}"
            yield f'<path class="chain" marker-end="url(#chain)" d="{d}"/>'
        last[placed.box.branch] = placed


def _edge(edge: Edge) -> str:
    curve: Curve = route(edge)
    batch = " batch" if edge.scope is Scope.BATCH else ""
    kind = f"interaction{batch}" if edge.crosses else "skip"
    head = ("batch" if batch else "microbatch") if edge.crosses else "chain"
    names = "\n".join(edge.values[:40])
    return f'<path class="{kind}" marker-end="url(#{head})" d="{curve.path}"><title>{escape(names)}</title></path>'


def _label(label: Label) -> Iterator[str]:
    for index, words in enumerate(label.words):
        yield _text(label.x, label.y + 13 * index, words.text, words.style)


def _notes(graph: BranchGraph, columns: int) -> list[str]:
    return [line for note in graph.notes for line in textwrap.wrap(f"Note: {note}", columns, subsequent_indent="   ")]


def _footer(notes: Sequence[str], top: float) -> Iterator[str]:
    for index, note in enumerate(notes, 1):
        yield _text(MARGIN, MARGIN + top + NOTE * index, note, "note")


def _text(x: float, y: float, text: str, style: str, colour: str = "", *, end: bool = False) -> str:
    paint = f' style="fill:{colour}"' if colour else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{style}"{paint}{anchor}>{escape(text)}</text>'

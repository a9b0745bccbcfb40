"""Draw the README's picture: `python -m tools.picture > docs/tree-and-cuts.svg`.

A row for each op of the tree, a column for each cut; a box where the op is a node of the cut, and
beside the joint cut's the backward nodes that serve it. All of it is read off a capture.
"""

import html
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

import foretrace
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall

CUTS = {"export": "#2f6f9f", "aten": "#3f8f4f", "joint": "#b0562f"}
ROW, LEFT, TOP, NAME, COLUMN, WIDTH = 24, 16, 66, 330, 128, 1130
INK, FAINT, PAPER = "#24292f", "#8c959f", "#ffffff"


class Block(torch.nn.Module):
    """The README's program."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(8)
        self.proj = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A number, so that it has a gradient."""
        return self.proj(self.norm(x)).relu().mean()


@dataclass(frozen=True)
class Row:
    """An op of the tree, its depth, its node in each cut, and the backward nodes that serve it."""

    name: str
    depth: int
    module: bool
    nodes: dict[str, str]
    backward: tuple[str, ...]


def rows() -> Iterator[Row]:
    """The tree of the program, as far as a cut shows it."""
    program = foretrace.capture(Block(), (torch.randn(4, 8),))
    nodes: dict[Op, dict[str, str]] = {}
    backward: dict[Op, list[str]] = {}
    for kind in CUTS:
        cut = program.cut(kind, loss=0 if kind == "joint" else None)
        for node in cut.graph_module.graph.nodes:
            op = node.meta.get("foretrace")
            if op is not None and op.because is not None:
                backward.setdefault(op.because, []).append(node.name)
            elif op is not None:
                nodes.setdefault(op.piece_of or op, {})[kind] = node.name
    for op, depth in _walk(program.recorded.ops, 0):
        if any(below in nodes for below, _ in _walk([op], 0)):
            name, module = target_name(op.target), isinstance(op.target, ModuleCall)
            yield Row(name, depth, module, nodes.get(op, {}), tuple(backward.get(op, ())))


def _walk(ops: Iterable[Op], depth: int) -> Iterator[tuple[Op, int]]:
    for op in ops:
        yield op, depth
        yield from _walk(op.body or (), depth + 1)


def svg(found: list[Row]) -> str:
    """The picture."""
    height = TOP + ROW * len(found) + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"',
        f' viewBox="0 0 {WIDTH} {height}" font-family="ui-monospace, monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        text(LEFT, 28, "the tree of one run", INK, bold=True),
        text(NAME, 28, "every graph is a cut through it", INK, bold=True),
    ]
    for column, (kind, colour) in enumerate(CUTS.items()):
        parts.append(text(_left(column), 52, kind, colour, bold=True))
    parts.append(text(_left(len(CUTS)), 52, "... and its backward, node by node", CUTS["joint"]))
    for number, row in enumerate(found):
        parts += _row(row, TOP + ROW * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _left(column: int) -> int:
    return NAME + COLUMN * column


def _row(row: Row, top: int) -> Iterator[str]:
    base = top + 16
    for depth in range(row.depth):
        x = LEFT + 18 * depth + 4
        yield f'<line x1="{x}" y1="{top - 4}" x2="{x}" y2="{top + ROW - 4}" stroke="#d0d7de"/>'
    ink = INK if row.nodes or row.module else FAINT
    yield text(LEFT + 18 * row.depth, base, row.name, ink, bold=row.module)
    for column, (kind, colour) in enumerate(CUTS.items()):
        if kind in row.nodes:
            yield _box(_left(column), top, row.nodes[kind], colour)
    if row.backward:
        yield text(_left(len(CUTS)), base, " ".join(row.backward), CUTS["joint"])


def _box(left: int, top: int, name: str, colour: str) -> str:
    rect = f'<rect x="{left - 6}" y="{top + 1}" width="{COLUMN - 14}" height="{ROW - 4}" rx="4"'
    return f'{rect} fill="{colour}"/>' + text(left, top + 16, name, PAPER)


def text(left: int, base: int, words: str, colour: str, *, bold: bool = False) -> str:
    """One line of text, which begins at `left`."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{left}" y="{base}" fill="{colour}"{weight}>{html.escape(words)}</text>'


if __name__ == "__main__":
    sys.stdout.write(svg(list(rows())))

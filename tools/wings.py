"""Draw the wings of foretrace/: `python -m tools.wings > docs/wings.svg`.

A row for each wing, the ground at the bottom: its rooms, and what it hands on to the wings above.
The order is that of tests/house/wings.py, what a wing hands on is the line "Gives" of its README.
"""

import re
import sys
from collections.abc import Iterator

from tests.house.wings import GROUND, ROOT, SIBLINGS, WINGS
from tools.picture import FAINT, INK, PAPER, text

ROW, LEFT, TOP, WIDTH, BOX, WORDS = 54, 16, 66, 1130, 248, 292
COLOURS = {
    "#2f6f9f": ("one operator, and a program as data", ("ir", "operators")),
    "#3f8f4f": ("the run", ("tracer", "python_state", "autograd", "session")),
    "#b0562f": ("graphs and calls", ("lowering", "runtime")),
    "#6e5494": ("people, files, entry points", ("inspect", "serialization", "frontends")),
}
GIVES = re.compile(r"^- Gives: (.*)\.$", re.MULTILINE)


def gives(wing: str) -> str:
    """What the README of a wing says that it hands on."""
    found = GIVES.search((ROOT / "foretrace" / wing / "README.md").read_text())
    assert found is not None, f"foretrace/{wing}/README.md: add a line '- Gives: ...'"
    return found[1]


def svg() -> str:
    """The picture."""
    height = TOP + ROW * (len(WINGS) + 1) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"',
        f' viewBox="0 0 {WIDTH} {height}" font-family="ui-monospace, monospace" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        text(LEFT, 28, "wings import only from below", INK, bold=True),
        text(WORDS, 28, "rooms, from the lowest", INK, bold=True),
    ]
    left = WORDS
    for colour, (words, _) in COLOURS.items():
        parts.append(text(left, 52, words, colour, bold=True))
        left += 8 * len(words) + 24
    for number, wing in enumerate(reversed(WINGS)):
        parts += _row(wing, TOP + ROW * number)
    return "\n".join([*parts, *_ground(TOP + ROW * len(WINGS)), "</svg>"]) + "\n"


def _row(wing: str, top: int) -> Iterator[str]:
    colour = next(colour for colour, (_, wings) in COLOURS.items() if wing in wings)
    left, width = _place(wing)
    yield _box(left, top, width, wing, colour)
    if wing in SIBLINGS:  # past the other one
        ends = (top - ROW, top) if left == LEFT else (top + ROW, top + 2 * ROW)
        yield _line(left + width // 2, *ends)
    below = SIBLINGS if wing == [*WINGS][-1] else (wing,)
    for left, width in map(_place, sorted(below)):
        yield _arrow(left + width // 2, top + ROW)
    yield text(WORDS, top + 17, " ".join(WINGS[wing]), INK)
    yield text(WORDS, top + 35, f"hands on {gives(wing)}".replace("`", ""), colour)


def _place(wing: str) -> tuple[int, int]:
    """Where its box begins, and how wide it is; those that do not import each other share a row."""
    if wing not in SIBLINGS:
        return LEFT, BOX
    width = (BOX - 8) // len(SIBLINGS)
    return LEFT + (width + 8) * sorted(SIBLINGS).index(wing), width


def _ground(top: int) -> Iterator[str]:
    yield _box(LEFT, top, BOX, "the ground", FAINT)
    yield text(WORDS, top + 17, " ".join(GROUND), INK)
    yield text(WORDS, top + 35, "hands on Refusal, and private names of torch", FAINT)


def _box(left: int, top: int, width: int, name: str, colour: str) -> str:
    rect = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{ROW - 14}" rx="4" fill="{colour}"/>'
    )
    return rect + text(left + 8, top + 25, name, PAPER, bold=True)


def _line(x: int, above: int, below: int) -> str:
    return f'<line x1="{x}" y1="{above - 4}" x2="{x}" y2="{below}" stroke="{FAINT}"/>'


def _arrow(middle: int, base: int) -> str:
    """From the wing below: what it hands on goes up."""
    points = f"{middle - 5},{base - 4} {middle + 5},{base - 4} {middle},{base - 11}"
    return f'<polygon points="{points}" fill="{FAINT}"/>'


if __name__ == "__main__":
    sys.stdout.write(svg())

"""The printed form of the differences between two cuts."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

from foretrace.errors import counted
from foretrace.inspect.diff.difference import Difference, Fold, Group, Reason, Seen, line_of
from foretrace.inspect.diff.sides import listed

TIMES = " \N{MULTIPLICATION SIGN} "
LABEL, NODES, NOTES, FOLDS = 12, 8, 6, 8
"""The width of a label; the most nodes, notes and folds that are shown"""
Style: TypeAlias = Literal["reason", "missing", "what", "left", "right", "note", "plain", "sum"]


class Row(NamedTuple):
    """One line to print: `label` in a column of its own, `text` beside it."""

    style: Style
    label: str = ""
    text: str = ""
    depth: int = 0

    @property
    def width(self) -> int:
        """The column of its text."""
        return 2 * self.depth + (LABEL if self.depth else 0)

    def __str__(self) -> str:
        left = f"{' ' * 2 * self.depth}{self.label}"
        return f"{left:<{self.width}}{self.text}".rstrip()


def group_rows(group: Group, most: int) -> Iterator[Row]:
    """The reason, then its differences; of at most `most` kinds."""
    times = f"{group.count}{TIMES}" if group.count > 1 else ""
    yield Row("missing" if group.reason.missing else "reason", text=f"{times}{group.reason.text}")
    if group.reason.place:
        yield Row("note", _whose(group.reason), group.reason.place, 1)
    if group.reason.root is not None:
        yield Row("note", "because", group.reason.root.text, 1)
    for fold in group.folds[:most]:
        yield from _fold(fold)
    rest = group.folds[most:]
    if rest:
        count = sum(len(fold.differences) for fold in rest)
        yield Row(
            "note", "", f"... and {counted(count, 'difference')} of {len(rest)} more forms", 1
        )


def _whose(reason: Reason) -> str:
    return "your line" if reason.kind in ("program", "argument") else "decided at"


def _fold(fold: Fold) -> Iterator[Row]:
    first, many = fold.first, len(fold.differences)
    if first.at_once:
        yield Row("what", first.kind, _at_once(fold), 1)
        return
    times = f"{many}{TIMES}" if many > 1 else ""
    part = "" if first.part == "forward" else f", {first.part}"
    yield Row("what", first.kind, f"{times}{first.what}{part}", 1)
    for side, style in (("left", "left"), ("right", "right")):
        nodes: tuple[Seen, ...] = getattr(first, side)
        if not nodes and first.kind.startswith("only"):
            continue
        yield Row(style, side, _nodes(nodes, by_name=many == 1), 2)  # type: ignore[arg-type]
    for note in first.notes[:NOTES]:
        yield Row("note", "", note, 2)
    if first.part == "forward":
        yield from _where(fold.differences)


def _at_once(fold: Fold) -> str:
    """The text of a fold of types, inputs or outputs."""
    first = fold.first
    notes = f": {', '.join(first.notes)}" if first.notes else ""
    named = [seen.name for each in fold.differences for seen in (each.left or each.right)]
    if first.part in ("input", "output"):
        kind = "" if first.what == "input" else f"{first.what} "
        return f"{first.part} {kind}{listed(named, 4)}{_types(fold)}{notes}"
    return f"{counted(len(named), f'{first.part} op')}{notes}: {listed(named, 4)}"


def _types(fold: Fold) -> str:
    """The types of one input or output on both sides."""
    left, right = ((side[0].types if side else ()) for side in (fold.first.left, fold.first.right))
    if len(fold.differences) > 1 or fold.first.kind != "type":
        return ""
    return f" ({', '.join(left)} and {', '.join(right)})"


def _nodes(nodes: Sequence[Seen], *, by_name: bool) -> str:
    if not nodes:
        return "nothing"
    names = [node.name if by_name else _short(node.target) for node in nodes]
    more = f" and {len(names) - NODES} more" if len(names) > NODES else ""
    return ", ".join(names[:NODES]) + more


def _short(target: str) -> str:
    return target.removeprefix("aten.").removesuffix(".default")


def _where(differences: Sequence[Difference]) -> Iterator[Row]:
    lines = list(
        dict.fromkeys(line_of(each.frame) for each in differences if each.frame is not None)
    )
    if lines:
        more = f", and {counted(len(lines) - 1, 'line')} more" if len(lines) > 1 else ""
        yield Row("note", "at", f"{lines[0]}{more}", 2)
    modules = list(dict.fromkeys(each.module[-1] for each in differences if len(each.module) > 1))
    if modules:
        yield Row("note", "in", listed(modules), 2)

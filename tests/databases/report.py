"""RELIABILITY.md: a row for each database, and what is refused by its cause."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from tests.databases.attempts import NOTHING
from tests.databases.routes import TORCHS
from tests.databases.table import CHILD, Line, counted, in_order

HEAD = """\
# Reliability

Written by `make reliability`, never by hand: torch's own test databases through every cut and entry
point, compared with eager. torch {torch}, CPU; from the records of these commits:
{records}.

Nobody has to read [{tables}]({tables}): it has every count by route,
and every operator that is not bitwise.

"samples" is how many there are of all operators, and how many at most of each. The other columns
count operators, each by its worst sample. "bitwise" is outputs, gradients, written inputs, strides,
aliasing and random numbers; "close" is equal within `torch.testing.assert_close`, or bitwise but
for strides. Each column is of the route that is worst in it: the smallest share of bitwise (that
route is named), the most that are close, the most that are refused. "torch's own" is the share of
bitwise by the worst of {torchs}, where they ran.
"""

OPEN = "…"
"""Stands in a cause for the word in which refusals of one cause differ"""


def report(lines: Iterable[Line], records: Iterable[str], tables: str) -> str:
    """The page; `tables` is the link from it to the tables behind it."""
    lines = in_order(lines)
    about = {"torch": torch.__version__, "records": ", ".join(records)}
    parts = [HEAD.format(**about, tables=tables, torchs=", ".join(TORCHS)), *summary(lines)]
    ours = [line for line in lines if line.route not in TORCHS]
    sections = {
        "Faults": listed(line for line in ours if line.failed),
        "Refused without a line": listed(line for line in ours if line.unplaced),
        "Not to the last bit": listed(x for x in ours if x.status in ("strides", "close")),
        "Refused, by cause": causes(line for line in ours if line.status == "refused"),
        "Nothing to compare": causes(line for line in ours if line.status == NOTHING),
    }
    for title, rows in sections.items():
        parts += ["", f"## {title}", "", *([*rows] or ["None."])]
    return "\n".join(parts) + "\n"


def summary(lines: list[Line]) -> Iterator[str]:
    """A table with a row for each database."""
    yield "| database | samples | worst route | bitwise | close | refused | faults | torch's own |"
    yield "|---|--:|---|--:|--:|--:|--:|--:|"
    for database in dict.fromkeys(line.database for line in lines):
        yield _row(database, [line for line in lines if line.database == database])


def _row(database: str, lines: list[Line]) -> str:
    compared = [line for line in lines if line.route != CHILD and line.status != NOTHING]
    by_route = {route: found for (_, route), found in counted(compared).items()}
    ours = {route: found for route, found in by_route.items() if route not in TORCHS}
    theirs = {route: found for route, found in by_route.items() if route in TORCHS}
    samples = [sum(x.samples for x in lines if x.route == name) for name in by_route]
    route, share = _worst(ours)
    torchs, their_share = _worst(theirs)
    cells = (
        database,
        f"{max(samples, default=0):,} ({lines[0].most})",
        route,
        share,
        max((found["close"] + found["strides"] for found in ours.values()), default=0),
        max((found["refused"] for found in ours.values()), default=0),
        len({line.name for line in lines if line.failed}),
        f"{their_share} ({torchs})" if theirs else "not run",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _worst(by_route: dict[str, Counter[str]]) -> tuple[str, str]:
    """The route with the smallest share of bitwise operators, and that share."""
    if not by_route:
        return "", "nothing"
    route = min(by_route, key=lambda name: by_route[name]["bitwise"] / by_route[name].total())
    return route, f"{by_route[route]['bitwise']} of {by_route[route].total()}"


def listed(lines: Iterable[Line]) -> Iterator[str]:
    """A line for each operator of a database, with its routes and the words of the first."""
    routes: dict[tuple[str, str, str], list[str]] = {}
    words: dict[tuple[str, str, str], str] = {}
    for line in lines:
        said = "eager differs afterwards" if line.left else line.said
        key = line.database, line.name, f"{said}, {line.count} of {line.samples}"
        routes.setdefault(key, []).append(line.route)
        words.setdefault(key, _plain(line.left or line.unplaced or line.what))
    for (database, name, said), by in routes.items():
        yield f"- {database} `{name}`: {said} ({', '.join(by)}): {words[database, name, said]}"


@dataclass
class Cause:
    """Results of one kind, whose words differ in one place at most."""

    kind: str
    words: list[str]
    operators: set[str] = field(default_factory=set)

    def fitted(self, kind: str, words: list[str]) -> list[str] | None:
        """The words of this cause and of one more result; None if that has another cause."""
        if (kind, len(words)) != (self.kind, len(self.words)):
            return None
        pairs = zip(self.words, words, strict=True)
        fitted = [mine if mine == other else OPEN for mine, other in pairs]
        return fitted if fitted.count(OPEN) <= 1 else None


def causes(lines: Iterable[Line]) -> Iterator[str]:
    """A table with a row for each cause, the commonest first; an operator counts once in a row."""
    found: list[Cause] = []
    for line in lines:
        words = _plain(line.what).split()
        for cause in found:
            if (fitted := cause.fitted(line.kind, words)) is not None:
                cause.words = fitted
                break
        else:
            found.append(cause := Cause(line.kind, words))
        cause.operators.add(line.name)
    if found:
        yield "| operators | kind | cause | which |"
        yield "|--:|---|---|---|"
    for cause in sorted(found, key=lambda each: -len(each.operators)):
        names = " ".join(f"`{name}`" for name in sorted(cause.operators))
        yield f"| {len(cause.operators)} | {cause.kind} | {' '.join(cause.words)} | {names} |"


def _plain(said: str) -> str:
    """The beginning of what was said, in one line that a table can hold."""
    return " ".join(said.split())[:160].replace("|", "/").replace("`", "'")

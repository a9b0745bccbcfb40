"""What the runs found: a line for each operator and route, and tables of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from tests.databases.attempts import NOTHING
from tests.databases.children import Ended, Record
from tests.databases.databases import DATABASES
from tests.databases.routes import ROUTES, TORCHS

# From best to worst: an operator is as good as its worst sample.
STATUSES: Final = (
    *(NOTHING, "bitwise", "strides", "close", "refused", "raises"),
    *("disguised", "broken", "timeout", "raw", "abort", "wrong"),
)
FAILURES: Final = STATUSES[STATUSES.index("disguised") :]
CHILD: Final = "child"  # in the place of a route: the whole operator


@dataclass(frozen=True)
class Line:
    """One operator by one route: the worst of its samples, and how many were so."""

    database: str
    name: str
    route: str
    status: str
    kind: str = ""
    what: str = ""
    count: int = 0
    samples: int = 0
    unplaced: str = ""
    left: str = ""
    most: str = "all"
    all_said: frozenset[str] = frozenset()

    @property
    def said(self) -> str:
        """The status; of a refusal, its kind too."""
        return _said(self.status, self.kind)

    @property
    def failed(self) -> bool:
        """Whether there is something that must not be, by a route of ours."""
        return self.route not in TORCHS and (self.status in FAILURES or bool(self.left))


def _said(status: str, kind: str) -> str:
    return f"{status} ({kind})" if kind else status


def lines_of(ended: Ended) -> list[Line]:
    """A line for each route, and one more for a child that did not end well."""
    database, _, name = ended.name.partition(" ")
    by_route = defaultdict[str, list[Record]](list)
    for record in ended.records:
        by_route[record["route"]].append(record)
    if any(by_route):
        by_route.pop("", None)  # some samples have something to compare
    lines = [_line(ended, route, found) for route, found in by_route.items()]
    if ended.end != "ok":
        lines.append(Line(database, name, CHILD, ended.end, what=ended.said, count=1, samples=1,
                          most=ended.most, all_said=frozenset([ended.end])))  # fmt: skip
    return lines


def _line(ended: Ended, route: str, records: list[Record]) -> Line:
    database, _, name = ended.name.partition(" ")
    worst = max(records, key=lambda record: STATUSES.index(record["status"]))
    return Line(
        database, name, route, worst["status"], worst.get("kind", ""),
        what=" ".join([worst.get("what", ""), *worst.get("ours", ())]).strip(),
        count=sum(record["status"] == worst["status"] for record in records),
        samples=len(records),
        most=ended.most,
        unplaced=next((r["what"] for r in records if r.get("unplaced")), ""),
        left=next((r["left"] for r in records if "left" in r), ""),
        all_said=frozenset(_said(r["status"], r.get("kind", "")) for r in records),
    )  # fmt: skip


def in_order(lines: Iterable[Line]) -> list[Line]:
    """By database as they are run, then by operator, then by route."""
    databases, routes = [*DATABASES], [*ROUTES, CHILD, ""]
    return sorted(lines, key=lambda x: (databases.index(x.database), x.name, routes.index(x.route)))


Counts = dict[tuple[str, str], Counter[str]]


def counted(lines: Iterable[Line]) -> Counts:
    """How many operators of each status, by database and route."""
    counts: Counts = defaultdict(Counter)
    for line in lines:
        counts[line.database, line.route or "-"][line.status] += 1
    return counts


def present(counts: Counts) -> list[str]:
    """The statuses that there are, from best to worst."""
    return [status for status in STATUSES if any(found[status] for found in counts.values())]


def shown(lines: Iterable[Line]) -> Table:
    """The counts, for the screen."""
    counts = counted(lines)
    statuses = present(counts)
    table = Table("database", "route", *statuses)
    for (database, route), found in counts.items():
        table.add_row(database, route, *(str(found[status] or "") for status in statuses))
    return table

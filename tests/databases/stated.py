"""What is known not to be bitwise, as a file that the runner writes and the tests hold against.

`database | samples` says of how many samples of each operator, at most. Any other line is an
operator and what becomes of it: `database | operator | status | routes`. The dtypes of OpInfo are
stated as one.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.databases.attempts import NOTHING
from tests.databases.opinfo import DTYPES
from tests.databases.routes import OURS
from tests.databases.table import CHILD, FAILURES, Line

FILE: Final = Path(__file__).with_name("stated.txt")
OPINFO: Final = {f"opinfo.{dtype}" for dtype in DTYPES} | {"opinfo.forward"}

BAR: Final = " | "
LEFT: Final = "eager differs afterwards"

Fact = tuple[str, str, str, str]  # database, operator, status, route


def group(database: str) -> str:
    """The name under which a database is stated."""
    return "opinfo" if database in OPINFO else database


def facts(lines: Iterable[Line]) -> set[Fact]:
    """What is not bitwise, and where eager was not left as it was, by the routes of a test."""
    return {
        (group(line.database), line.name, said, line.route)
        for line in lines
        for said in (line.all_said | ({LEFT} if line.left else set())) - {"bitwise", NOTHING}
        if line.route in {*OURS, CHILD}
    }


def fault(fact: Fact) -> bool:
    """Whether it is one that must not be, stated or not."""
    return fact[2] == LEFT or fact[2].partition(" (")[0] in FAILURES


def stated() -> set[Fact]:
    """What the file says."""
    return {
        (database, name, status, route)
        for database, name, status, routes in _rows(4)
        for route in routes.split(", ")
    }


def samples_stated(database: str) -> int | None:
    """Of how many samples of each operator the file is; None is all."""
    most = dict(_rows(2))[database]
    return None if most == "all" else int(most)


def _rows(length: int) -> list[list[str]]:
    rows = [line.split(BAR) for line in FILE.read_text().splitlines()]
    return [row for row in rows if len(row) == length]


def state(found: Iterable[Line]) -> None:
    """Write the file."""
    found = [line for line in found if line.route in {*OURS, CHILD}]
    routes = defaultdict(list)
    for *which, route in sorted(facts(found)):
        routes[tuple(which)].append(route)
    rows = [*{line.database: line.most for line in found}.items()]
    rows += [(*which, ", ".join(by)) for which, by in routes.items()]
    FILE.write_text("".join(f"{BAR.join(row)}\n" for row in rows))

"""docs/reliability-tables.md: every count by database and route, and all that is not bitwise."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.databases.attempts import NOTHING
from tests.databases.routes import TORCHS
from tests.databases.stated import group
from tests.databases.table import FAILURES, Line, counted, in_order, present

HEAD = """\
# Tables behind RELIABILITY.md

Written by `make reliability`, never by hand; from the records of these commits:
{records}.

The words are those of [RELIABILITY.md]({page}). An operator counts by its worst sample, route by
route. "strides" is bitwise but for strides. "nothing" has nothing to compare: eager raises, or
differs from run to run. "raises" is torch's own, by its own routes or in Dynamo. What stands to the
right of it is a fault: "disguised" is an error in the words "the program raised" where eager raises
none. Torch's own routes ({torchs}) are in the table and in no list.
"""


def raw_tables(lines: Iterable[Line], records: Iterable[str], page: str) -> str:
    """The file; `page` is the link from it to RELIABILITY.md."""
    lines = in_order(lines)
    about = {"records": ", ".join(records), "torchs": ", ".join(TORCHS), "page": page}
    parts = [HEAD.format(**about), *_table(lines)]
    lines = [line for line in lines if line.route not in TORCHS]
    sections = (
        ("Faults", "status", [line for line in lines if line.status in FAILURES]),
        ("Eager differs afterwards", "left", [line for line in lines if line.left]),
        ("Not to the last bit", "status", [x for x in lines if x.status in ("strides", "close")]),
        ("Refused without a line", "unplaced", [line for line in lines if line.unplaced]),
        ("Refused", "status", [line for line in lines if line.status == "refused"]),
        ("Nothing to compare", "status", [line for line in lines if line.status == NOTHING]),
    )
    for title, of, chosen in sections:
        parts += ["", f"## {title}", "", *(_listed(chosen, of) if chosen else ["None."])]
    return "\n".join(parts) + "\n"


def _table(lines: list[Line]) -> Iterator[str]:
    counts = counted(lines)
    statuses = present(counts)
    samples: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        samples[line.database, line.route or "-", line.most] += line.samples
    yield "| database | route | samples | " + " | ".join(statuses) + " |"
    yield "|---" * (3 + len(statuses)) + "|"
    for (database, route, most), count in samples.items():
        found = counts[database, route]
        numbers = [f"{count:,} ({most})", *(str(found[status] or "") for status in statuses)]
        yield f"| {database} | {route} | " + " | ".join(numbers) + " |"


def _listed(lines: list[Line], of: str) -> Iterator[str]:
    """Operators under what became of them, with their routes and the words of the first."""
    routes = defaultdict[tuple[str, str, str], list[Line]](list)
    for line in lines:
        status = line.said if of == "status" else "after it"
        routes[group(line.database), line.name, status].append(line)
    for (database, name, status), found in routes.items():
        said = found[0].what if of == "status" else getattr(found[0], of)
        by = ", ".join(dict.fromkeys(line.route for line in found if line.route))
        count = f"{found[0].count} of {found[0].samples}"
        words = " ".join(said.split())[:160].replace("|", "/").replace("`", "'")
        yield f"- {database} **{name}**: {status} ({count}{'; ' * bool(by)}{by}): {words}"

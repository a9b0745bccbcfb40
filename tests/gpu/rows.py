"""One row for each comparison, and the tables that are made of rows."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

# From best to worst. "near" is Inductor's alone; "measured" is a number beside no other.
STATUSES: Final = (
    *("same", "near", "measured", "skipped", "refused"),
    *("DIFFERS", "raw", "abort", "timeout"),
)
FEW: Final = 4  # programs named in one line of the table
FAILURES: Final = frozenset(STATUSES[STATUSES.index("DIFFERS") :])


@dataclass(frozen=True)
class Row:
    """What one comparison found; a refusal's status has its kind: "refused(data-dependent)"."""

    part: str
    program: str
    dtype: str
    what: str
    status: str
    detail: Any = ""

    @property
    def group(self) -> str:
        """The status without a refusal's kind."""
        return self.status.partition("(")[0]

    @property
    def failed(self) -> bool:
        """Whether it is something that must not be."""
        return self.group in FAILURES

    @property
    def said(self) -> str:
        """The detail in one line; what it holds as data stays in results.jsonl."""
        said = self.detail.get("said", "") if isinstance(self.detail, dict) else self.detail
        return " ".join(str(said).split())


Counts = dict[tuple[str, str], Counter[str]]


def counted(rows: Iterable[Row]) -> Counts:
    """How many rows of each status, by part and kind of comparison."""
    counts: Counts = defaultdict(Counter)
    for row in rows:
        counts[row.part, row.what.partition(": ")[0]][row.group] += 1
    return counts


def table(rows: Iterable[Row]) -> str:
    """The counts as plain text, then every row that is not "same", by reason."""
    rows = list(rows)
    counts = counted(rows)
    present = [status for status in STATUSES if any(found[status] for found in counts.values())]
    lines = [["part", "what", *present]]
    for (part, what), found in counts.items():
        lines.append([part, what, *(str(found[status] or "") for status in present)])
    return "\n".join([*_aligned(lines), "", *_reasons(rows)]) + "\n"


def _aligned(lines: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def _reasons(rows: list[Row]) -> Iterator[str]:
    """Failures one by one; what was skipped, refused or measured once for each reason."""
    failed = Counter((row.status, row.part, row.program, row.dtype, row.what, row.said)
                     for row in rows if row.failed)  # fmt: skip
    for (status, *place, said), count in failed.items():
        times = f" ({count} times)" if count > 1 else ""
        yield f"{status}: {' '.join(place)}: {said:.400}{times}"
    told: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.group in ("skipped", "refused", "near"):
            told[row.status, row.said].append(row)
    for (status, said), found in told.items():
        yield f"{status}: {said:.300}: {', '.join(_named(found))}"
    for row in rows:
        if row.group == "measured":
            yield f"measured: {row.part} {row.program} {row.dtype} {row.what}: {row.said:.2000}"


def _named(rows: list[Row]) -> Iterator[str]:
    """The parts that the rows are of, each with its programs where these are few."""
    of: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        of[row.part].append(f"{row.program} {row.dtype}")
    for part, programs in of.items():
        few = dict.fromkeys(programs)
        yield f"{part} of {'; '.join(few) if len(few) <= FEW else f'{len(few)} programs'}"

"""The tests of torch's that foretrace does not pass, by cause; any change is a failure."""

import tomllib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("expected.toml")


@dataclass(frozen=True)
class Expected:
    """Tests of one file that fail in one mode, by one cause."""

    file: str
    mode: str
    cause: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Change:
    """A test that does not do what the list says."""

    file: str
    mode: str
    test: str
    passes: bool

    def __str__(self) -> str:
        now = "passes now, and is on the list" if self.passes else "fails, and is not on the list"
        return f"{self.file} ({self.mode}) {self.test}: {now}"


def read(path: Path = LIST) -> list[Expected]:
    """The list.

    Raises:
        ValueError: a test is on it twice, or a cause without a word.
    """
    rows = tomllib.loads(path.read_text())["expected"]
    found = [
        Expected(row["file"], mode, row["cause"].strip(), tuple(row["tests"]))
        for row in rows
        for mode in row["modes"]
    ]
    times = Counter((each.file, each.mode, test) for each in found for test in each.tests)
    twice = [key for key, count in times.items() if count > 1]
    if twice or not all(each.cause for each in found):
        raise ValueError(f"{path.name}: twice, or without a cause: {twice}")
    return found


def changes(
    file: str,
    mode: str,
    passed: Collection[str],
    failed: Collection[str],
    known: Iterable[Expected],
) -> list[Change]:
    """What the list does not say of the tests of a file that ran in a mode."""
    listed = {t for each in known if (each.file, each.mode) == (file, mode) for t in each.tests}
    new = [Change(file, mode, test, passes=False) for test in sorted(set(failed) - listed)]
    return [*new, *(Change(file, mode, t, passes=True) for t in sorted(listed & set(passed)))]

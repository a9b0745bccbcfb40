"""What the quick run takes of many rows, by one rule; the rest of them is slow.

The place of a row decides, so that every process takes the same. Suites that run the same programs
take turns, so that each program is quick in some of them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import pytest

from tests.programs import CASES

SUITES = 6
"""Twice as many as there are: test_zoo, test_pair and test_small_sizes"""


ZOO = [pytest.param(case, id=name) for name, case in CASES.items()]
"""Every program of the zoo, as parameters of a test"""


def one_in(count: int, cases: Sequence[Any], turn: int = 0) -> list[Any]:
    """Parameters of a test, of which one of so many is quick."""
    return [
        pytest.param(
            *each.values, id=each.id,
            marks=[*each.marks, *([] if place % count == turn % count else [pytest.mark.slow])],
        )
        for place, each in enumerate(cases)
    ]  # fmt: skip


def one_way_each(rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Of each row one of its ways is quick, each way in turn."""
    return [each for place, ways in enumerate(rows) for each in one_in(len(ways), ways, turn=place)]


def some(count: int, items: Iterable[Any], turn: int = 0) -> list[Any]:
    """What is called by its name, of which one in so many is quick."""
    return one_in(count, [_named(item) for item in items], turn)


def crossed(rows: Iterable[Any], ways: Iterable[Any]) -> list[Any]:
    """Each row by each way; of each row that is quick one way is, the ways in turn."""
    given, by = [_named(row) for row in rows], [_named(way) for way in ways]
    quick, made = 0, []
    for row in given:
        each = [
            pytest.param(
                *row.values, *way.values, id=f"{row.id}-{way.id}", marks=[*row.marks, *way.marks]
            )
            for way in by
        ]
        made += one_in(len(by), each, turn=quick)
        quick += not row.marks
    return made


def _named(item: Any) -> Any:
    """A parameter with the name that pytest would give it: of functions and classes their own."""
    if isinstance(item, type(pytest.param())):
        return item
    return pytest.param(item, id=str(getattr(item, "__name__", item)))


def at_other_sizes(turn: int) -> list[Any]:
    """The programs of the zoo whose sizes vary; those of the other suites' turns are slow here."""
    varying = [
        pytest.param(case, id=f"{case.section}.{name}")
        for name, case in CASES.items()
        if case.varies
    ]
    return one_in(SUITES, varying, turn)


class Sampled:
    """The same for a test marked `one_in(n)`, over what of it is quick, before `-m` deselects.

    The name of a test says where it begins, so that suites leave out different programs.
    """

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """All but one in n are slow."""
        seen = Counter[str]()
        for item in items:
            for mark in item.iter_markers("one_in") if not item.get_closest_marker("slow") else ():
                name = item.nodeid.partition("[")[0]
                seen[name] += 1
                if (seen[name] + crc32(name.encode())) % mark.args[0]:
                    item.add_marker(pytest.mark.slow)

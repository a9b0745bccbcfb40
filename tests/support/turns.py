"""What the quick run takes of many rows, by one rule; the rest of them is slow.

The place of a row decides, so that every process takes the same. Suites that run the same programs
take turns, so that each program is quick in some of them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.programs import CASES

SUITES = 3
"""test_zoo, test_pair and test_small_sizes"""


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


def crossed(rows: Iterable[Any], ways: Iterable[Any]) -> list[Any]:
    """Each row by each way, as they are called; of each row one way is quick, the ways in turn."""
    each = [*ways]
    return one_way_each(
        [
            [pytest.param(row, way, id=f"{called(row)}-{called(way)}") for way in each]
            for row in rows
        ]
    )


def some(count: int, items: Iterable[Any], turn: int = 0) -> list[Any]:
    """What is called by its name, of which one in so many is quick."""
    return one_in(count, [pytest.param(item, id=called(item)) for item in items], turn)


def called(item: Any) -> str:
    """As pytest calls it: functions and classes by their names."""
    return str(getattr(item, "__name__", item))


def at_other_sizes(turn: int) -> list[Any]:
    """The programs of the zoo whose sizes vary; those of the other suites' turns are slow here."""
    varying = [
        pytest.param(case, id=f"{case.section}.{name}")
        for name, case in CASES.items()
        if case.varies
    ]
    return one_in(SUITES, varying, turn)

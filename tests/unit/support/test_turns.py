"""Which rows of a table are quick: each row by one way, and no way is left out."""

from collections import Counter
from typing import Any

import pytest

from tests.support.turns import crossed, one_in, some


def quick(table: list[Any]) -> list[tuple[Any, ...]]:
    return [each.values for each in table if pytest.mark.slow not in each.marks]


def test_one_row_in_so_many() -> None:
    assert quick(some(3, range(7), 1)) == [(1,), (4,)]


def test_each_row_by_one_way_and_each_way_with_several_rows() -> None:
    table = crossed(range(9), "abc")
    assert len(table) == len({each.id for each in table}) == 27
    assert [row for row, _ in quick(table)] == [*range(9)]
    assert Counter(way for _, way in quick(table)) == dict.fromkeys("abc", 3)


def test_rows_that_are_slow_take_no_turn() -> None:
    """Else every quick one would have the same way."""
    rows = one_in(3, some(1, range(9)))
    assert quick(crossed(rows, "abc")) == [(0, "a"), (3, "b"), (6, "c")]


def test_names_are_those_that_pytest_gives() -> None:
    way = pytest.param(True, "eager", id="compile-eager")
    assert [each.id for each in crossed([quick, "x"], [way])] == [
        "quick-compile-eager",
        "x-compile-eager",
    ]

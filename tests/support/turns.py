"""Programs that several suites run at another size: each is quick in one of them, in turn."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.programs import CASES

SUITES = 3
"""test_zoo, test_pair and test_small_sizes"""


ZOO = [pytest.param(case, id=name) for name, case in CASES.items()]
"""Every program of the zoo, as parameters of a test"""


def at_other_sizes(turn: int) -> Sequence[Any]:
    """The programs of the zoo whose sizes vary; those of the other suites' turns are slow here."""
    names = [name for name, case in CASES.items() if case.varies]
    return [
        pytest.param(
            CASES[name], id=f"{CASES[name].section}.{name}",
            marks=[] if place % SUITES == turn else [pytest.mark.slow],
        )
        for place, name in enumerate(names)
    ]  # fmt: skip


def every_other(cases: Sequence[Any]) -> list[Any]:
    """Parameters of a test, of which every second one is slow: other suites run these programs."""
    return one_in(2, cases)


def one_in(count: int, cases: Sequence[Any], turn: int = 0) -> list[Any]:
    """Parameters of a test, of which one of so many is quick."""
    return [
        pytest.param(
            *each.values, id=each.id, marks=[] if place % count == turn else [pytest.mark.slow]
        )
        for place, each in enumerate(cases)
    ]  # fmt: skip

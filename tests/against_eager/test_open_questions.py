"""`n in keys`, `min` and `max` of numbers that data decides: answered without the number itself."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

EVERY = Counter([2, 5])
HALVES = {0.5, 1.0, 4.0}
PAIRS = {(2, 1): "pair"}


class Counts:
    """Asks of a number that it counts whether it is among some."""

    def __init__(self) -> None:
        self.count, self.marks = 0, {3: "mark", 7: "mark"}


def in_an_attribute(state: Counts, x: Tensor) -> Tensor:
    return x * 2 if state.count in state.marks else x + state.count


def not_in_a_global(state: Counts, x: Tensor) -> Tensor:
    return x + state.count if state.count not in EVERY else x * state.count


def in_a_constant(state: Counts, x: Tensor) -> Tensor:
    return x * 2 if state.count in {1, 4} else x + state.count


def in_a_local(state: Counts, x: Tensor) -> Tensor:
    marks = {6}
    return x * 2 if state.count in marks else x + state.count


def in_floats(state: Counts, x: Tensor) -> Tensor:
    return x * 2 if state.count in HALVES else x + state.count


def in_what_is_made_for_it(state: Counts, x: Tensor) -> Tensor:
    return x * 2 if state.count in dict.fromkeys((2, 4)) else x + state.count


def a_pair_in_a_dict(state: Counts, x: Tensor) -> Tensor:
    return x * 2 if (state.count, 1) in PAIRS else x + state.count


def looked_up(state: Counts, x: Tensor) -> Tensor:
    return x + EVERY[state.count] + EVERY.get(state.count, 3)


ONCE, EACH = 4, 10
"""Captures at most: where the number stays open, and where it does not"""


@pytest.mark.parametrize(("asks", "captures"), [
    (in_an_attribute, ONCE), (not_in_a_global, ONCE), (in_a_constant, ONCE), (in_a_local, ONCE),
    (in_floats, ONCE), (in_what_is_made_for_it, EACH), (a_pair_in_a_dict, EACH),
    (looked_up, EACH),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:.* was captured again 8 times")
def test_membership(asks: Callable[[Counts, Tensor], Tensor], captures: int) -> None:
    eager, ours = Counts(), Counts()

    def counting(x: Tensor) -> Tensor:
        found = asks(ours, x)
        ours.count += 1
        return found

    compiled: Any = foretrace.compile(counting, fullgraph=True)
    for _ in range(10):
        x = torch.randn(3)
        expected = asks(eager, x)
        eager.count += 1
        assert torch.equal(compiled(x), expected)
    assert eager.count == ours.count
    assert len(compiled.recaptures) < captures


VALUES = [0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan, 1e-320]


@pytest.mark.parametrize("function", [
    lambda v: max(1.0, v), lambda v: max(v, 0.0), lambda v: min(v, v * 2), lambda v: min(-0.0, v),
    lambda v: max(v, math.nan), lambda v: min(math.nan, v), lambda v: max(min(v, 1.0), -1.0),
])  # fmt: skip
def test_the_larger_of_two_floats(function: Callable[[float], float]) -> None:
    """One capture for all of them, zeros and NaN as Python has them."""
    compiled: Any = foretrace.compile(lambda x: x * function(x.sum().item()), fullgraph=True)
    program = compiled.fn
    for value in VALUES:
        x = torch.tensor([value, 0.0], dtype=torch.float64)
        mine, theirs = compiled(x), program(x)
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.nan_to_num(9), theirs.nan_to_num(9))
        assert torch.equal(mine.signbit(), theirs.signbit())
    assert not compiled.recaptures


@pytest.mark.parametrize("function", [
    lambda v: max(1, v), lambda v: max([v, 0.5]), lambda v: max(v, 0.5, 0.25),
    lambda v: min(v, 0.5, key=abs), lambda v: max((v,), default=2.0), lambda v: min(True, v),
])  # fmt: skip
def test_what_else_is_asked(function: Callable[[float], float]) -> None:
    """As Python answers it, by guards; an int stays one."""
    compiled: Any = foretrace.compile(
        lambda x: (x * function(x.sum().item()), isinstance(function(x.sum().item()), int))
    )
    for value in (0.0, 1.5, -2.0, 0.75):
        x = torch.tensor([value, 0.0], dtype=torch.float64)
        (mine, whole), (theirs, wanted) = compiled(x), compiled.fn(x)
        assert torch.equal(mine, theirs)
        assert whole is wanted

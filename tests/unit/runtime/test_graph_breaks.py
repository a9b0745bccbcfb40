"""Whether one more capture is worth it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from foretrace.errors import Refusal
from foretrace.runtime.graph_breaks.recapture_policy import (
    LONGER,
    RECAPTURES,
    RESTS,
    UNUSED,
    Again,
    key_of,
)

X = torch.ones(2)
BROKEN: Any = SimpleNamespace(of="value", reason="n is 3, the capture has 2", at=None, asked=None)


@pytest.mark.parametrize(
    "other",
    [
        (None, (X.double(), 2), {}),
        (None, (X.clone().requires_grad_(), 2), {}),
        (None, (X, 2.0), {}),
        (None, (X, 2, 3), {}),
        (nn.Linear(2, 2), (X, 2), {}),
    ],
)
def test_calls_of_other_kinds(other: tuple[Any, ...]) -> None:
    assert key_of(*other) != key_of(None, (X, 2), {})


def test_calls_of_one_kind() -> None:
    key = key_of(None, (X, 2), {})
    assert key == key_of(None, (torch.zeros(5), 7), {}) == key_of(None, (X,), {"n": 2})
    with torch.no_grad():
        assert key_of(None, (X, 2), {}) != key


def test_each_rest_is_longer() -> None:
    again = Again()
    assert [again.rest() for _ in range(3)] == [RESTS, RESTS * LONGER, RESTS * LONGER**2]


def test_captures_that_answered_nothing_end() -> None:
    again, entries = Again(), [SimpleNamespace(answered=0) for _ in range(UNUSED["value"])]
    entries = [_hashable(entry) for entry in entries]
    for number, entry in enumerate(entries):
        again.check([BROKEN], ("k",), entries[:number], many=False)
        again.note(entry, ("k",), entries)
    with pytest.raises(Refusal, match="n is 3, the capture has 2"):
        again.check([BROKEN], ("k",), entries, many=False)
    again.check([BROKEN], ("another kind",), entries, many=False)
    entries[0].answered = 1
    again.check([BROKEN], ("k",), entries, many=False)


def test_captures_that_are_aborted_end() -> None:
    again, asked = Again(), SimpleNamespace(**{**vars(BROKEN), "asked": object()})
    assert [again.raises([asked]) for _ in range(RECAPTURES)] == [False] * (RECAPTURES - 1) + [True]


def _hashable(entry: SimpleNamespace) -> Any:
    class Entry(SimpleNamespace):
        __hash__ = object.__hash__
        __eq__ = object.__eq__

    return Entry(**vars(entry))

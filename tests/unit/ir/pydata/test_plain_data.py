"""Plain data: a copy that no later change reaches, and what counts as the same."""

import copy
import math
from collections import defaultdict
from typing import Any

import pytest

from foretrace.ir.pydata.plain_data import plain, same, snapshot

DATA: list[Any] = [
    1, 1.0, True, None, "a", math.nan, 0.0, -0.0, [1, [2.0, (3,)]], {"a": [1], "b": {}},
    defaultdict(list, a=[1]), (1, [2]), range(4),
]  # fmt: skip


@pytest.mark.parametrize("item", DATA, ids=repr)
def test_a_snapshot_is_the_same_data(item: Any) -> None:
    assert plain(item)
    assert same(item, snapshot(item))


def test_distinct_data_are_not_the_same() -> None:
    pairs = [(one, two) for one in DATA for two in DATA if one is not two]
    assert not [pair for pair in pairs if same(*pair)]


@pytest.mark.parametrize("item", [[1, [2]], {"a": [1]}, defaultdict(list, a=[1]), (1, [2])])
def test_no_later_change_reaches_it(item: Any) -> None:
    changed = copy.deepcopy(item)
    before = snapshot(changed)
    inner = changed["a"] if isinstance(changed, dict) else changed[1]
    inner.append(9)
    assert same(item, before)
    assert not same(changed, before)


@pytest.mark.parametrize("item", [object(), [object()], {"a": object()}, iter(())])
def test_what_is_no_plain_data(item: Any) -> None:
    assert not plain(item)

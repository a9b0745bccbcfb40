"""Two sequences beside each other: nothing is lost, nothing crosses, and what fits is found."""

import pytest
from hypothesis import given, strategies as st

from foretrace.inspect.diff import sequence_alignment as sequences
from foretrace.inspect.diff.sequence_alignment import FULL, align, running_order

WORDS = st.text("abc", max_size=12)


def score(a: str, b: str) -> int:
    return FULL if a == b else 8 if a.lower() == b.lower() else 0


def aligned(left: str, right: str) -> list[tuple[str | None, str | None]]:
    return list(align(left, right, score, str.lower))


def longest(left: str, right: str) -> int:
    """The length of a longest common subsequence, the slow way."""
    if not left or not right:
        return 0
    if left[0] == right[0]:
        return 1 + longest(left[1:], right[1:])
    return max(longest(left[1:], right), longest(left, right[1:]))


@given(WORDS, WORDS)
def test_nothing_is_lost_and_as_much_as_possible_is_paired(left: str, right: str) -> None:
    steps = aligned(left, right)
    assert "".join(a for a, _ in steps if a) == left
    assert "".join(b for _, b in steps if b) == right
    both = [(a, b) for a, b in steps if a and b]
    assert all(a == b for a, b in both)
    assert len(both) == longest(left, right)


@given(WORDS, st.integers(0, 12), st.sampled_from("xyz"))
def test_one_item_more_is_found(word: str, place: int, other: str) -> None:
    longer = word[:place] + other + word[place:]
    assert [step for step in aligned(word, longer) if None in step] == [(None, other)]
    assert [step for step in aligned(longer, word) if None in step] == [(other, None)]


def test_what_fits_better_is_preferred() -> None:
    assert aligned("aA", "A") == [("a", None), ("A", "A")]
    assert aligned("a", "Aa") == [(None, "A"), ("a", "a")]
    assert aligned("a", "A") == [("a", "A")]


@given(WORDS, WORDS)
def test_long_sequences_lose_nothing_either(left: str, right: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "CELLS", 2)
        steps = aligned(left, right)
    assert "".join(a for a, _ in steps if a) == left
    assert "".join(b for _, b in steps if b) == right


def test_when_items_come() -> None:
    order = running_order("abcd", "AxByD", [("a", "A"), ("b", "B"), ("d", "D")])
    assert sorted("AxByD", key=order.__getitem__) == ["A", "x", "B", "y", "D"]
    assert order["x"] == order["a"]
    assert order["a"] < order["y"] < order["c"] < order["D"]

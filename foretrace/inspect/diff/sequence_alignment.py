"""Alignment of two sequences with the greatest score."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import TypeVar

A = TypeVar("A", bound=Hashable)
B = TypeVar("B")

FULL = 15
"""The score of two equal items; that of two items that do not fit is 0."""
CELLS = 400_000
"""The most pairs of items that are scored; with more, runs of equal items are searched."""


def align(
    left: Sequence[A],
    right: Sequence[B],
    score: Callable[[A, B], int],
    key: Callable[[A | B], Hashable],
) -> Iterator[tuple[A | None, B | None]]:
    """Pairs in order, with None for an item without a counterpart.

    Args:
        left: the one.
        right: the other.
        score: how well two items fit, from 0 (not at all) to FULL.
        key: equal for items that fit; used for long sequences.
    """
    start, end = 0, 0
    short = min(len(left), len(right))
    while start < short and score(left[start], right[start]) == FULL:
        start += 1
    while end < short - start and score(left[-1 - end], right[-1 - end]) == FULL:
        end += 1
    yield from zip(left[:start], right[:start], strict=True)
    inner = left[start : len(left) - end], right[start : len(right) - end]
    if len(inner[0]) * len(inner[1]) <= CELLS:
        yield from _best(*inner, score)
    else:
        yield from _by_runs(*inner, score, key)
    yield from zip(left[len(left) - end :], right[len(right) - end :], strict=True)


def by_rules(
    left: Sequence[A],
    right: Sequence[A],
    rules: Sequence[Callable[[A, A], bool]],
    score: Callable[[A, A], tuple[int, ...]],
) -> Iterator[tuple[A, A]]:
    """Pairs in any order, by the first rule that allows one; no pair has a better partner.

    Args:
        left: the one.
        right: the other.
        rules: whether two items may be a pair; evaluated again after each pair.
        score: how well two items fit; not at all if it begins with 0.
    """
    over, waiting = list(left), list(right)
    for may in rules:
        found = True
        while found:
            found = False
            for a in [*over]:
                b = max((b for b in waiting if may(a, b)), key=partial(score, a), default=None)
                if b is None or not score(a, b)[0]:
                    continue
                if any(may(each, b) and score(each, b) > score(a, b) for each in over):
                    continue
                over.remove(a)
                waiting.remove(b)
                found = True
                yield a, b


def running_order(
    left: Sequence[A], right: Sequence[A], same: Iterable[tuple[A, A]]
) -> dict[A, int]:
    """The position of each item: in the left one; of other right items, that of the last pair.

    Args:
        left: the one.
        right: the other.
        same: the pairs of left and right items.
    """
    found = {item: place for place, item in enumerate(left)}
    counterpart, now = {b: a for a, b in same}, 0
    for item in right:
        now = found[item] = found.get(counterpart.get(item, item), now)
    return found


def _best(
    left: Sequence[A], right: Sequence[B], score: Callable[[A, B], int]
) -> Iterator[tuple[A | None, B | None]]:
    """The algorithm of Needleman and Wunsch, without a gap penalty."""
    width = len(right)
    scores = [[score(a, b) for b in right] for a in left]
    best = [[0] * (width + 1) for _ in range(len(left) + 1)]
    for i in range(len(left) - 1, -1, -1):
        row, below, mine = best[i], best[i + 1], scores[i]
        for j in range(width - 1, -1, -1):
            fit = mine[j]
            row[j] = max(below[j], row[j + 1], below[j + 1] + fit if fit else 0)
    i = j = 0
    while i < len(left) and j < width:
        fit = scores[i][j]
        if fit and best[i][j] == best[i + 1][j + 1] + fit:
            yield left[i], right[j]
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            yield left[i], None
            i += 1
        else:
            yield None, right[j]
            j += 1
    yield from ((a, None) for a in left[i:])
    yield from ((None, b) for b in right[j:])


def _by_runs(
    left: Sequence[A],
    right: Sequence[B],
    score: Callable[[A, B], int],
    key: Callable[[A | B], Hashable],
) -> Iterator[tuple[A | None, B | None]]:
    matcher = SequenceMatcher(None, [*map(key, left)], [*map(key, right)], autojunk=False)
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind == "equal":
            yield from zip(left[i:i_end], right[j:j_end], strict=True)
        elif (i_end - i) * (j_end - j) <= CELLS:
            yield from _best(left[i:i_end], right[j:j_end], score)
        else:
            yield from ((a, None) for a in left[i:i_end])
            yield from ((None, b) for b in right[j:j_end])

"""A walk over the heap: each object once, near ones first or nested, no farther than asked."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from foretrace.ir.pydata.heap_walk import walk_heap, walk_nested
from foretrace.ir.pydata.members import members, own_kind


def inside(item: Any) -> list[Any]:
    return [each for _, each in members(item)]


def steps(step: tuple[str, Any]) -> Iterator[tuple[str, Any]]:
    name, item = step
    if own_kind(item):
        yield from ((f"{name}.{key}", each) for key, each in members(item))


def test_near_ones_first_and_each_once() -> None:
    leaf: list[Any] = []
    near, far = [leaf], [[leaf]]
    both = [far, near]
    both.append(both)
    found = list(walk_heap([both], inside, depth=3))
    assert list(map(id, found)) == list(map(id, [both, far, near, far[0], leaf]))


def test_no_farther_than_asked() -> None:
    deep = [[[1]]]
    assert list(walk_heap([deep], inside, depth=2)) == [deep, deep[0], deep[0][0]]
    assert list(walk_heap([deep], inside, depth=0)) == [deep]


def test_no_more_than_asked_and_no_leaves() -> None:
    held = [[1], ["a"], [2.0]]
    assert list(walk_heap([held], inside, most=2)) == [held, held[0]]
    found = list(walk_heap([held], inside, leaves=(int, str)))
    assert found == [held, *held, 2.0]


def test_what_was_seen_is_not_entered_and_what_is_seen_stays_alive() -> None:
    held = [[1], [2]]
    seen: dict[int, Any] = {id(held[0]): held[0]}
    found = list(walk_heap([held], lambda item: [*inside(item)], leaves=(int,), seen=seen))
    assert found == [held, [2]]
    assert set(seen) == {id(held), id(held[0]), id(held[1])}
    assert all(key == id(item) for key, item in seen.items())


def test_a_walk_that_is_left_asks_no_more() -> None:
    asked = []

    def asking(item: Any) -> list[Any]:
        asked.append(item)
        return inside(item)

    assert next(walk_heap([[[1]]], asking)) == [[1]]
    assert asked == []


def test_nested_comes_before_the_next() -> None:
    shared = ["s"]
    tree = {"a": [shared], "b": shared, "c": "c"}
    found = [name for name, _ in walk_nested([("t", tree)], steps, itemgetter(1))]
    assert found == ["t", "t.a", "t.a.0", "t.a.0.0", "t.c"]


def test_steps_of_a_nested_walk_are_taken_one_by_one() -> None:
    """What is read on the way sees what was read before it."""
    order = []

    def noting(step: tuple[str, Any]) -> Iterator[tuple[str, Any]]:
        for each in steps(step):
            order.append(f"to {each[0]}")
            yield each

    for name, _ in walk_nested([("t", [[1], [2]])], noting, itemgetter(1)):
        order.append(name)
    assert order == [
        "t",
        "to t.0",
        "t.0",
        "to t.0.0",
        "t.0.0",
        "to t.1",
        "t.1",
        "to t.1.0",
        "t.1.0",
    ]

"""What objects hold is found without a call of their classes."""

from collections import deque
from typing import Any

import pytest

from foretrace.ir.pydata.members import MISSING, cell_content, members, own_items, own_length
from foretrace.python_state.code.bytecode import cells_of
from foretrace.python_state.snapshot.reachable import referents


class Refusing(list[Any]):
    """A list whose own methods raise."""

    def __iter__(self) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        raise AssertionError


class Holder:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ({"a": 1, 2: "b"}, [("a", 1), (2, "b")]),
        ([5, 6], [(0, 5), (1, 6)]),
        ((5,), [(0, 5)]),
        (deque([5]), [(0, 5)]),
        ({5}, [(0, 5)]),
        (Refusing([5, 6]), [(0, 5), (1, 6)]),
        (7, []),
    ],
    ids=lambda item: type(item).__name__,
)
def test_members(item: object, found: list[tuple[Any, Any]]) -> None:
    assert list(members(item)) == found


def test_members_of_an_object() -> None:
    made: Any = object.__new__(Holder)
    object.__setattr__(made, "x", 1)
    assert list(members(made)) == [("x", 1)]


def test_a_length_is_pythons_own() -> None:
    assert own_length(Refusing([5, 6])) == 2


def test_cells_by_name() -> None:
    here = 5

    def inner() -> tuple[int, int]:
        return here, later

    cells = cells_of(inner)  # type: ignore[arg-type]
    assert cell_content(cells["here"]) == 5
    assert cell_content(cells["later"]) is MISSING
    later = 6


@pytest.mark.parametrize("item", [{"a": 1}, {5}])
def test_what_is_written_while_it_is_read(item: Any) -> None:
    items = own_items(item)
    item.update({"b": 2} if isinstance(item, dict) else {6})  # as another thread may
    assert len(list(items)) == 1


def test_the_attributes_of_an_object_are_held_by_their_dict() -> None:
    """By Python 3.13.0 the collector knows them as the object's alone."""
    item, holder = [1], Exception()
    vars(holder)["item"] = item
    made = type("Made", (), {})()
    made.item = item
    assert any(each is item for each in referents(vars(holder)))
    assert any(each is item for each in referents(vars(made)))
    assert any(each is item for each in referents({"item": item}))
    assert any(each is item for each in referents([item]))
    assert referents({}) == []

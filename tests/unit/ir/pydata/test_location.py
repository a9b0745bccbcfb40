"""A location of each kind is read, bound, put back, compared and named, without the user's code."""

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foretrace.ir.pydata.location import (
    Contents,
    Entry,
    Filling,
    Location,
    OnArgument,
    OnData,
    OnGradient,
    OnInput,
    content_of,
    refill_content,
)
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.read_facts import How, ReadLocation

Made = tuple[Location, Callable[[], Any]]
"""A location that holds "old", and what the user reads there"""


class Loud:
    """An object whose own code must not run."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def __setattr__(self, name: str, item: Any) -> None:
        raise AssertionError(name)

    def __delattr__(self, name: str) -> None:
        raise AssertionError(name)


class Slots:
    __slots__ = ("a",)

    def __setattr__(self, name: str, item: Any) -> None:
        raise AssertionError(name)


class LoudDict(OrderedDict[Any, Any]):
    def __setitem__(self, key: Any, item: Any) -> None:
        raise AssertionError(key)

    def __delitem__(self, key: Any) -> None:
        raise AssertionError(key)


def an_attribute() -> Made:
    holder = Loud(a="old")
    return Location("a", vars(holder), "old"), lambda: vars(holder).get("a", MISSING)


def an_attribute_of_a_class() -> Made:
    holder = type("Holder", (), {"a": "old"})
    return Location("a", holder, "old"), lambda: vars(holder).get("a", MISSING)


def a_slot() -> Made:
    holder = Slots()
    object.__setattr__(holder, "a", "old")
    return Location("a", holder, "old"), lambda: getattr(holder, "a", MISSING)


def a_cell() -> Made:
    cell = types.CellType("old")

    def now() -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            return MISSING

    return Location("a", cell, "old"), now


def a_global() -> Made:
    space = {"a": "old", "__name__": "program"}
    return Location("a", space, "old"), lambda: space.get("a", MISSING)


def an_entry() -> Made:
    holder = {7: "old"}
    return Entry("cache", holder, 7, "old"), lambda: holder.get(7, MISSING)


def an_entry_of_a_class_of_dicts() -> Made:
    holder = LoudDict()
    OrderedDict.__setitem__(holder, 7, "old")
    return Entry("cache", holder, 7, "old"), lambda: dict.get(holder, 7, MISSING)


def a_parameter() -> Made:
    table: Any = nn.Linear(1, 1)._parameters
    table["weight"] = "old"
    return Entry("weight", table, "weight", "old"), lambda: table.get("weight", MISSING)


def a_buffer() -> Made:
    table: Any = nn.BatchNorm1d(1)._buffers
    table["running_mean"] = "old"
    found = Entry("running_mean", table, "running_mean", "old")
    return found, lambda: table.get("running_mean", MISSING)


KINDS = [
    an_attribute, an_attribute_of_a_class, a_slot, a_cell, a_global, an_entry,
    an_entry_of_a_class_of_dicts, a_parameter, a_buffer,
]  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
def test_it_is_read_bound_and_put_back(kind: Callable[[], Made]) -> None:
    location, now = kind()
    assert location.now == "old"
    assert not location.bound
    assert not location.changed
    location.bind("new")
    assert (now(), location.now) == ("new", "new")
    assert location.bound
    assert location.changed
    location.restore()
    assert now() == "old"


@every_kind
def test_it_is_bound_to_nothing(kind: Callable[[], Made]) -> None:
    location, now = kind()
    location.bind(MISSING)
    assert now() is MISSING
    assert location.now is MISSING
    location.restore()
    assert now() == "old"


@every_kind
def test_a_later_record_is_of_the_same_location(kind: Callable[[], Made]) -> None:
    location, _ = kind()
    location.bind("new")
    later = location.refreshed
    assert type(later) is type(location)
    assert later.identity == location.identity
    assert (later.name, later.before, location.before) == (location.name, "new", "old")
    other, _ = kind()
    assert other.identity != location.identity


def test_plain_data_is_compared_by_value() -> None:
    held = [1, 2.0]
    location = Location("a", {"a": held}, held)
    location.bind([1, 2.0])
    assert location.bound
    assert not location.changed
    location.bind(held)
    held.append(3)
    assert not location.bound
    assert location.changed
    location.restore()
    assert held == [1, 2.0]


def test_content_that_was_held_counts_after_another_was_bound() -> None:
    held = {"x": 1}
    location = Location("a", {"a": held}, held)
    held["y"] = 2
    location.bind({"x": 1})
    assert location.changed
    location.restore()
    assert location.now is held
    assert held == {"x": 1}


@pytest.mark.parametrize(
    "holder",
    [[1, 2], deque([1, 2], maxlen=3), {1, 2}, {1: "a", 2: "b"}, OrderedDict({2: "b", 1: "a"}),
     defaultdict(list, {1: "a"})],
    ids=lambda holder: type(holder).__name__,
)  # fmt: skip
def test_the_content_of_a_container(holder: Any) -> None:
    contents = Contents.of("cache", holder)
    before = content_of(holder)
    assert (contents.key, contents.before, contents.now) == ("its content", before, before)
    length = len(holder)
    holder.clear()
    assert contents.now in ([], set())
    assert contents.changed
    contents.bind(before)
    assert content_of(holder) == before
    assert len(holder) == length
    assert contents.named("self.cache").name == "self.cache"
    assert contents.named("self.cache").identity == contents.identity


def test_a_copy_of_content_is_another_object() -> None:
    held = [object()]
    copy = content_of(held)
    held.append(1)
    assert len(copy) == 1
    refill_content(held, copy)
    assert held == copy
    assert held is not copy


def test_what_is_filled_takes_more() -> None:
    held = deque([1])
    filling = Filling("seen", held, ["append", "extendleft"])
    assert filling.now is MISSING
    filling.bind([2, [3, 4]])
    assert [*held] == [4, 3, 1, 2]


def test_a_call_binds_what_it_has_of_its_own() -> None:
    tensor = torch.zeros(2)
    OnInput("mark", {}, MISSING, 0).of_call([tensor], ()).bind("set")
    OnGradient("x.grad", 0).of_call([tensor], ()).bind(torch.ones(2))
    OnData("x.data", 0).of_call([tensor], ()).bind(torch.full((2,), 3.0))
    assert vars(tensor)["mark"] == "set"
    assert torch.equal(tensor.grad, torch.ones(2))  # type: ignore[arg-type]
    assert torch.equal(tensor, torch.full((2,), 3.0))
    given = ((), {"cache": [1]})
    own = given[1]["cache"]
    path = ((False, 1), (False, "cache"))
    OnArgument("cache", path).of_call([], given).bind(([2, 3], None))
    assert own == [2, 3]
    location, now = a_global()
    location.of_call([], ()).bind("new")
    assert now() == "new"


def test_a_location_by_another_name_is_the_same_location() -> None:
    entry, variable = an_entry()[0], a_global()[0]
    assert entry.named("self.cache").name == "self.cache"
    assert entry.named("self.cache").identity == entry.identity
    assert variable.named("other").identity == variable.identity


@pytest.mark.parametrize(
    ("name", "how", "holder", "key", "variable", "kind"),
    [
        ("the global SCALE", "item", {"SCALE": 2}, "SCALE", "SCALE", Entry),
        ("net.sizes[3]", "item", {3: 2}, 3, 3, Entry),
        ("the closed-over best", "cell", types.CellType(2), None, "best", Location),
        ("net.slot", "attribute", Slots(), "a", "a", Location),
        ("net.sizes[0]", "item", [2], 0, 0, type(None)),
    ],
)
def test_what_was_read_has_a_location(
    name: str, how: How, holder: Any, key: Any, variable: Any, kind: type
) -> None:
    """None of an item of a list, which is bound with all of the content."""
    found = ReadLocation(name, how, holder, key, 2)
    location = found.location
    assert found.variable == variable
    assert type(location) is kind
    if location is not None:
        assert location.identity == found.identity
        assert location.name == (variable if type(variable) is str else name)
        location.bind(5)
        assert location.now == 5

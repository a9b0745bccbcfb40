"""What a run has changed, as changes of locations; and what they are called."""

from collections.abc import Iterable
from operator import is_
from typing import Any, Self

from foretrace.ir.pydata.location import Contents, Entry, Location
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import Change
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract


def changes_of(places: Iterable[Location]) -> list[Change]:
    """What is no longer as it was."""
    found: list[Change] = []
    for place in places:
        if place.changed and isinstance(place.before, dict) and not place.bound:
            found += content_changes(place.name, place.before, place.copy, place.before)
        elif place.changed:
            found.append(Change(place, place.now, place.bound))
    return found


def filled(name: str, item: Any, before: Any) -> Change:
    """What a container holds now that had something else before."""
    return Change(place := Contents(name, item, before), place.now, rebound=True)


def content_changes(
    name: str, item: dict[Any, Any], before: dict[Any, Any], now: dict[Any, Any]
) -> list[Change]:
    """The entries of a dict that are others now; all of it, if the old ones are no longer in front.

    One under the class of our own tensors is none: where a cache goes by the type of a tensor,
    eager has `torch.Tensor` in it.
    """
    if not all(map(is_, now, before)) or len(now) < len(before):
        return [filled(name, item, before)]
    keys = [key for key in now if not (isinstance(key, type) and issubclass(key, Abstract))]
    called = name.entry if isinstance(name, (Called, EachByItsKey)) else lambda _: name
    return changes_of(Entry(called(key), item, key, before.get(key, MISSING)) for key in keys)


class Called(str):
    """What a dict of an optimizer's is about: a parameter, by name, or a group.

    `inner`: of the dict that has one for each parameter, the names of these, by id.
    """

    __slots__ = ("inner",)

    inner: dict[int, str]

    def __new__(cls, name: str, inner: dict[int, str] | None = None) -> Self:
        """By its name."""
        found = super().__new__(cls, name)
        found.inner = inner or {}
        return found

    def entry(self, key: object) -> "Called":
        """What the entry of a key is about."""
        return Called(self.inner.get(id(key), self))

    def of(self, *parts: object) -> str:
        """What a part of it is called: `exp_avg of layers.0.weight`."""
        what = ".".join(str(part) for part in parts if isinstance(part, str) and part)
        return f"{what} of {self}" if what else str(self)


class EachByItsKey(str):
    """The name of a table whose entries have names of their own."""

    __slots__ = ()

    @staticmethod
    def entry(key: object) -> str:
        """The name of an entry."""
        return str(key)


def name_of_leaf(change: Change, path: str) -> str:
    """The name of a leaf of what a location holds; of an optimizer's, `lr of group 0`."""
    if isinstance(change.place.name, Called):
        return change.place.name.of(change.place.key, path)
    return ".".join(filter(None, (change.name, path)))

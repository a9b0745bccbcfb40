"""What guards on Python's state ask at each call, where that is no expression: is it as it was?"""

import types
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from foretrace.ir.pydata.members import PYTHONS_OWN, own_items
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import AttributeNames, ShownContent
from foretrace.runtime.guards.guard import Shown, differs


class Shows:
    """Whether an object of C shows what it did."""

    def __init__(self, known: ShownContent) -> None:
        self.known, self.plain = known, plain(known.before)

    def same(self) -> bool:
        """Asked at each call."""
        now, before = self.known.ask(self.known.holder), self.known.before
        return now is before or (self.plain and same(now, before))

    def words(self) -> str:
        """Without what it shows where that is long, or a secret."""
        now, before = self.known.ask(self.known.holder), self.known.before
        if type(before) is bytes:
            return f"{self.known.name} has other content than in the capture"
        return differs(self.known.name, Shown(before), now)


class Members:
    """Whether a set has the members that it had."""

    def __init__(self, members: tuple[object, ...]) -> None:
        self.members = members  # alive, so that nothing else gets the id of one
        self.keys = set(map(_by_identity, members))

    def same(self, holder: Any) -> bool:
        """Asked of Python's own type: a class may say otherwise."""
        return {_by_identity(item) for _, item in own_items(holder)} == self.keys


class Items:
    """Whether a dict has the items that it had, by keys that are not looked up."""

    def __init__(self, items: tuple[tuple[object, object], ...]) -> None:
        self.keys = {id(key): key for key, _ in items}
        self.before = {id(key): (item, plain(item)) for key, item in items}

    def same(self, table: Any) -> bool:
        """Asked of Python's own type: a class may say otherwise."""
        now = {id(key): item for key, item in own_items(table) if id(key) in self.keys}
        return len(now) == len(self.keys) and all(
            item is before or (is_data and same(item, before))
            for item, (before, is_data) in ((now[key], each) for key, each in self.before.items())
        )


class Order:
    """Whether a table has the names that it had, and what is not None in that order.

    A weight that loses its parametrization is registered again, behind a bias that is None.
    """

    def __init__(self, table: Mapping[Any, object]) -> None:
        self.names, self.order = table.keys(), _present(table)

    def same(self, table: Mapping[Any, object]) -> bool:
        """Asked where the names are in another order."""
        return table.keys() == self.names and _present(table) == self.order


def same_items(one: Mapping[Any, object], other: Mapping[Any, object]) -> bool:
    """Whether two tables have the same names in the same order, and by each the same object."""
    return [*one] == [*other] and all(one[key] is other[key] for key in one)


def _present(table: Mapping[Any, object]) -> list[Any]:
    return [name for name, item in table.items() if item is not None]


class NotInTables:
    """Whether tensors are none of those in modules' tables."""

    def __init__(self, others: list[torch.Tensor], tables: Sequence[Mapping[str, Any]]) -> None:
        self.others = {id(each): each for each in others}  # alive, as of sets
        self.tables = tables

    def hold(self) -> bool:
        """Asked at each call."""
        tensors = chain.from_iterable(table.values() for table in self.tables)
        return self.others.keys().isdisjoint(map(id, tensors))


def _by_identity(item: object) -> object:
    return (type(item), item) if plain(item) else id(item)


class Added:
    """Which names an object has now that the program's code mentions, and had not.

    Also names that Python looks up in a class by itself, such as `__len__`.
    """

    def __init__(self, known: AttributeNames, mentioned: frozenset[str]) -> None:
        self.known, self.mentioned = known, mentioned | known.by_library

    def names(self, space: Iterable[str]) -> list[str]:
        """In order."""
        found = self.mentioned.intersection(space)
        if isinstance(space, types.MappingProxyType):
            found = found.union(filter(is_special, space))
        return sorted(found - self.known.before)

    def words(self, space: Iterable[str]) -> str:
        """What the first of them does."""
        name = self.names(space)[0]
        hides = self.known.kind is not None and hasattr(self.known.kind, name)
        does = "hides that of the class" if hides else "is there now, the capture saw none"
        return f"{self.known.name}.{name} {does}"


def is_special(name: object) -> bool:
    """Whether it is a name that Python looks up in a class by itself: `__len__`."""
    special = type(name) is str and name.startswith("__") and name.endswith("__")
    return special and name not in PYTHONS_OWN

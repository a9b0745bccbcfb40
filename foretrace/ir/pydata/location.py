"""Locations: where Python's state has an object, read, bound and compared with what was there.

A location knows its holder and the key by which that has the object, and its content before a run.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Final, Self

import torch

from foretrace.ir.pydata.members import (
    MISSING,
    bind_name,
    lookup,
    names_in,
    own_items,
    own_kind,
)
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.ir.pydata.paths import Path, item_at
from foretrace.ir.pydata.plain_data import plain, same, snapshot
from foretrace.ir.pydata.tensor_classes import TENSOR


class Location:
    """A name that holds an object: a global, an attribute, a slot, a closure cell.

    Args:
        name: of the variable.
        holder: a dict of names, a class, an object with slots, or a cell.
        before: its content before the run; MISSING if nothing.
    """

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        self.name, self.holder = name, holder
        self.key: Any = name
        self.before, self.copy = before, _copied(before)

    @property
    def identity(self) -> tuple[int, Any]:
        """The same for each record of this location."""
        return id(self.holder), self.key

    @property
    def now(self) -> Any:
        """What it holds; MISSING if nothing."""
        return lookup(self.holder, self.key)

    def bind(self, item: Any) -> None:
        """Let it hold another object; MISSING: none."""
        bind_name(self.holder, self.key, item)

    def of_call(self, inputs: Sequence[Any], call: Any) -> Self:
        """The location as a call has it, before it binds any.

        Args:
            inputs: those of the graph.
            call: the arguments, positional ones and others.
        """
        return self

    def _on(self, holder: Any) -> Self:
        found = copy(self)
        found.holder = holder
        return found

    @property
    def refreshed(self) -> Self:
        """The location, with what it holds now as what was there before."""
        found = copy(self)
        found.before = self.now
        found.copy = _copied(found.before)
        return found

    def named(self, name: str) -> Self:
        """The same location by another name."""
        found = copy(self)
        found.name = name
        return found

    @property
    def bound(self) -> bool:
        """Whether it holds another object, not only other content."""
        return self.now is not self.before

    @property
    def changed(self) -> bool:
        """Whether it holds something else, or its content has changed."""
        now = self.now
        if now is not self.before:
            return not (plain(now) and same(now, self.copy)) or self._filled
        return self.copy is not now and not same(now, self.copy)

    @property
    def _filled(self) -> bool:
        """Whether its former content has other content now."""
        return self.copy is not self.before and not (
            plain(self.before) and same(self.before, self.copy)
        )

    def restore(self) -> None:
        """Bind it to its former object, with the content that this had."""
        self.bind(self.before)
        if isinstance(self.before, (dict, list, set)) and self._filled:
            refill_content(self.before, self.copy)


def _copied(item: Any) -> Any:
    return snapshot(item) if plain(item) else item


class Entry(Location):
    """An entry of a dict that has a name itself."""

    def __init__(self, name: str, holder: dict[Any, Any], key: Any, before: Any) -> None:
        super().__init__(name, holder, before)
        self.key = key

    @property
    def now(self) -> Any:
        """What it holds; MISSING if there is none."""
        return dict.get(self.holder, self.key, MISSING)

    def bind(self, item: Any) -> None:
        """Let it hold another object."""
        kind: Any = OrderedDict if isinstance(self.holder, OrderedDict) else dict
        if item is not MISSING:
            kind.__setitem__(self.holder, self.key, item)
        elif dict.__contains__(self.holder, self.key):
            kind.__delitem__(self.holder, self.key)


CONTENTS: Final = "its content"
"""In the place of the key of an item"""


class Contents(Location):
    """What a list, a deque, a dict or a set holds; the object itself stays.

    `before` and `now` are copies: a set of a set, pairs of a dict, else a list.
    """

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        super().__init__(name, holder, [*before.items()] if isinstance(before, dict) else before)
        self.key = CONTENTS

    @classmethod
    def of(cls, name: str, holder: Any) -> "Contents":
        """The content of a container, as it is."""
        return cls(name, holder, content_of(holder))

    @property
    def now(self) -> Any:
        """What it holds."""
        return content_of(self.holder)

    def bind(self, item: Any) -> None:
        """Let it hold other items."""
        refill_content(self.holder, item)


class FormerContents(Contents):
    """The content of what a place holds when a call begins, and no longer when it ends.

    Another may hold it still, or it is returned: a call fills the container that it finds in `at`.
    """

    def __init__(self, name: str, holder: Any, before: Any, at: Location) -> None:
        super().__init__(name, holder, before)
        self.at = at


def content_of(holder: Any) -> Any:
    """A copy of what a container holds, taken at once: another thread may write to it."""
    kind = own_kind(holder)
    if kind is dict:
        return [*own_items(holder)]
    return set[Any]().union(holder) if kind is set else [*kind.__iter__(holder)]


def refill_content(holder: Any, items: Any) -> None:
    """Let a container hold such a copy; a list is written at once: another thread may read it."""
    kind = own_kind(holder)
    if kind is list:
        list.__setitem__(holder, slice(None), items)
        return
    kind = OrderedDict if isinstance(holder, OrderedDict) else kind
    kind.clear(holder)
    (kind.extend if kind is deque else kind.update)(holder, items)


WAYS: Final[Mapping[type, Mapping[str, Callable[[Any, Any], Any]]]] = MappingProxyType(
    {
        list: {"append": list.append, "extend": list.extend},
        deque: {
            "append": deque.append,
            "appendleft": deque.appendleft,
            "extend": deque.extend,
            "extendleft": deque.extendleft,
        },
    }
)
"""Methods of Python's own containers that do not depend on what there is, whatever that is"""


class Filling(Location):
    """What a program puts into a container that it does not read; each call puts its own there.

    `ways`: the names of the methods of Python's own type by which it does, in order. What it is
    bound to are the arguments of these, one for each.
    """

    def __init__(self, name: str, holder: Any, ways: Sequence[str]) -> None:
        super().__init__(name, holder, MISSING)
        self.key, self.ways = CONTENTS, ways

    @property
    def now(self) -> Any:
        """Nobody asks."""
        return MISSING

    def bind(self, item: Any) -> None:
        """Put these items there, behind what there is."""
        ways = WAYS[type(self.holder)]
        for way, each in zip(self.ways, item, strict=True):
            ways[way](self.holder, each)


class OnInput(Location):
    """An attribute that Python has set on an input; each call sets it on the input that it has."""

    def __init__(self, name: str, holder: dict[str, Any], before: Any, index: int) -> None:
        super().__init__(name, holder, before)
        self.index = index

    def of_call(self, inputs: Sequence[Any], call: Any) -> Self:
        """As `Location` has it."""
        return self._on(vars(inputs[self.index]))


class OnTensor(Location):
    """What torch has an attribute for, of an input; each call binds that of the input it has."""

    attribute: str
    what: str
    """the attribute in words"""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, {}, MISSING)
        self.index = index

    def of_call(self, inputs: Sequence[Any], call: Any) -> Self:
        """As `Location` has it."""
        return self._on(inputs[self.index])

    def bind(self, item: Any) -> None:
        """Set it on the input of a call."""
        setattr(self.holder, self.attribute, item)


class OnGradient(OnTensor):
    """The `.grad` of an input."""

    attribute, what = "grad", "gradient"


class OnData(OnTensor):
    """The memory of an input, which becomes that of another tensor."""

    attribute, what = "data", "memory"


class OnArgument(Location):
    """What a container or an object among the arguments holds; each call fills the one it has.

    It is bound to what `own_content` gives.
    """

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, {}, MISSING)
        self.key = path

    def of_call(self, inputs: Sequence[Any], call: Any) -> Self:
        """As `Location` has it."""
        return self._on(item_at(call, self.key))

    def bind(self, item: Any) -> None:
        """Let that of a call hold these items and attributes."""
        items, attributes = item
        if items is not None:
            refill_content(self.holder, items)
        for name in (own_attributes(self.holder) or {}).keys() - (attributes or {}).keys():
            object.__delattr__(self.holder, name)
        for name, each in (attributes or {}).items():
            object.__setattr__(self.holder, name, each)


def own_content(holder: Any) -> tuple[Any, dict[str, Any] | None]:
    """What a container or an object holds itself: its items, a dict's by key; its attributes."""
    items = dict(own_items(holder)) if own_kind(holder) is dict else None
    if items is None and own_kind(holder):
        items = content_of(holder)
    return items, own_attributes(holder)


def own_attributes(holder: Any) -> dict[str, Any] | None:
    """The attributes and slots of a container or an object; None if it has room for none."""
    if not isinstance(holder, torch.Tensor):
        return names_in(holder)
    parts = object_attributes(holder) or {}
    return {name: item for name, item in parts.items() if name != TENSOR}

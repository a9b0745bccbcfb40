"""Places outside of the program that a run may change: what they held, what they hold, and back."""

import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import is_
from typing import Any

from foretrace.errors import Frame
from foretrace.python_state.plain_data import plain, same, snapshot
from foretrace.tensors.abstract import Abstract

FIRST_CALL = "or, if only its first call does it: call it once eagerly before"
"""A way out of a change of Python state"""


class Place:
    """A global, a closure cell or an attribute, and what it held before the run."""

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        self.name, self.holder, self.before = name, holder, before
        self.key: Any = name
        self.copy = snapshot(before) if plain(before) else before

    @property
    def now(self) -> Any:
        """What it holds; MISSING if nothing."""
        return held_by(self.holder, self.name)

    @property
    def changed(self) -> bool:
        """Whether it holds something else, or its content has changed."""
        now = self.now
        if now is not self.before:
            return not (plain(now) and same(now, self.copy))
        return self.copy is not now and not same(now, self.copy)

    @property
    def bound(self) -> bool:
        """Whether it holds another object, not only other content."""
        return self.now is not self.before

    def bind(self, item: Any) -> None:
        """Let it hold another object."""
        holder, name = self.holder, self.name
        if isinstance(holder, dict):
            if item is MISSING:
                holder.pop(name, None)
            else:
                holder[name] = item
            return
        kind: Any = type if isinstance(holder, type) else object
        name = CONTENT if isinstance(holder, types.CellType) else name
        if item is MISSING:
            kind.__delattr__(holder, name)
        else:
            kind.__setattr__(holder, name, item)


class Entry(Place):
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


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to a place: it holds `after` now, or its content is another (None)."""

    place: Place
    after: Any
    rebound: bool
    at: Frame | None = None

    @property
    def repeatable(self) -> bool:
        """Whether a call can do it again: a name bound to plain data, an entry that was made.

        A container in an entry is none: the next call may fill it further.
        """
        if isinstance(self.place, Entry) and isinstance(self.after, (dict, list, set, deque)):
            return False
        made = isinstance(self.place, Entry) and self.place.before is MISSING
        return self.rebound and (made or plain(self.after))

    def undo(self) -> None:
        """As it was before the run."""
        self.place.bind(self.place.before)
        refill(self.place.before, self.place.copy)

    def redo(self) -> None:
        """As the run left it."""
        self.place.bind(self.after)


def refill(item: Any, copy: Any) -> None:
    """Give a container the content that its snapshot has."""
    if item is copy or same(item, copy):
        return
    if isinstance(item, (dict, list, set)):
        item.clear()
        add: Any = item.extend if isinstance(item, list) else item.update
        add(copy)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""What a name holds that is not bound"""


CONTENT = "cell_contents"
"""What a closure cell has its item in"""


def held_by(holder: Any, name: str) -> Any:
    """What a name stands for in a dict, a class, a closure cell or slots; MISSING if nothing."""
    if isinstance(holder, dict):
        return holder.get(name, MISSING)
    if isinstance(holder, types.CellType):
        return cell_content(holder)
    if isinstance(holder, type):
        return vars(holder).get(name, MISSING)
    try:
        return object.__getattribute__(holder, name)
    except AttributeError:
        return MISSING


def cell_content(cell: Any) -> Any:
    """What a closure cell holds; MISSING if nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def changes_of(places: Iterable[Place]) -> list[Change]:
    """What is no longer as it was."""
    found: list[Change] = []
    for place in places:
        if place.changed and isinstance(place.before, dict) and not place.bound:
            found += content_changes(place.name, place.before, place.copy, place.before)
        elif place.changed:
            found.append(Change(place, place.now, place.bound))
    return found


def content_changes(
    name: str, item: dict[Any, Any], before: dict[Any, Any], now: dict[Any, Any]
) -> list[Change]:
    """The entries of a dict that are others now; all of it, if the old ones are no longer in front.

    One under the class of our own tensors is none: where a cache goes by the type of a tensor,
    eager has `torch.Tensor` in it.
    """
    if not all(map(is_, now, before)) or len(now) < len(before):
        return [Change(Place(name, {}, None), None, rebound=False)]
    keys = [key for key in now if not (isinstance(key, type) and issubclass(key, Abstract))]
    return changes_of(Entry(name, item, key, before.get(key, MISSING)) for key in keys)

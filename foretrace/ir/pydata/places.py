"""Places of Python's state: what a run leaves there, and what a call finds there."""

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.pydata.containers import LEAF, Structure, fill_in_place, leaves_like, take_apart
from foretrace.ir.pydata.members import CONTENT, MISSING, held_by, own_items, own_kind
from foretrace.ir.pydata.plain_data import plain, refill, same, snapshot


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
            return not (plain(now) and same(now, self.copy)) or self._filled
        return self.copy is not now and not same(now, self.copy)

    @property
    def _filled(self) -> bool:
        """Whether what it held has other content now."""
        return self.copy is not self.before and not (
            plain(self.before) and same(self.before, self.copy)
        )

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


class Contents(Place):
    """What a list, a deque, a dict or a set holds; the object itself stays.

    `before` and `now` are copies: a set of a set, pairs of a dict, else a list.
    """

    def __init__(self, name: str, holder: Any, before: Any) -> None:
        super().__init__(name, holder, [*before.items()] if isinstance(before, dict) else before)
        self.key = CONTENTS

    @property
    def now(self) -> Any:
        """What it holds."""
        return content_of(self.holder)

    def bind(self, item: Any) -> None:
        """Let it hold other items."""
        kind = own_kind(self.holder)
        if kind is list:  # at once: another thread may read it
            list.__setitem__(self.holder, slice(None), item)
            return
        kind = OrderedDict if isinstance(self.holder, OrderedDict) else kind
        kind.clear(self.holder)
        (kind.extend if kind is deque else kind.update)(self.holder, item)


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
"""Methods of Python's own containers that tell nothing of what there is, whatever that is"""


class Filling(Place):
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


CONTENTS = "its content"
"""In the place of the key of an item"""


def content_of(holder: Any) -> Any:
    """A copy of what a container holds."""
    kind = own_kind(holder)
    if kind is dict:
        return [*own_items(holder)]
    items = (item for _, item in own_items(holder))
    return set(items) if kind is set else [*items]


class Kept:  # no dataclass, which would be a container
    """An item that a container had before: the very object, by its path in the content."""

    __slots__ = ("path",)

    def __init__(self, *path: int) -> None:
        self.path = path

    def of(self, content: Any) -> Any:
        """The item."""
        for place in self.path:
            content = content[place]
        return content


class OnInput(Place):
    """An attribute that Python has set on an input; each call sets it on the input that it has."""

    def __init__(self, name: str, holder: dict[str, Any], before: Any, index: int) -> None:
        super().__init__(name, holder, before)
        self.index = index


class OnGradient(Place):
    """The `.grad` of an input; each call binds that of the input that it has."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, {}, MISSING)
        self.index = index


class OnData(Place):
    """The memory of an input; each call gives that of another tensor to the input that it has."""

    def __init__(self, name: str, index: int) -> None:
        super().__init__(name, {}, MISSING)
        self.index = index


class OnArguments(Place):
    """What containers and objects among the arguments hold; each call fills those that it has."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to a place: it holds `after` now, or its content is another (None)."""

    place: Place
    after: Any
    rebound: bool
    at: Frame | LazyFrame | None = None
    path: str = ""
    """how the place is told, where its name is not all"""
    itself: bool = False
    """whether it is an object that was there before"""

    @property
    def name(self) -> str:
        """The place as it is told."""
        return self.path or self.place.name

    @property
    def repeatable(self) -> bool:
        """Whether a call can do it again: a name bound to plain data, an entry that was made.

        Of a container the content depends on what it held before. One in an entry that holds more
        than plain data is none: it could not be made anew, and may be filled further.
        """
        if isinstance(self.place, Contents):
            return False
        made = isinstance(self.place, Entry) and self.place.before is MISSING
        made = made and not isinstance(self.after, (dict, list, set, deque))
        return self.rebound and (made or self.itself or plain(self.after))

    def undo(self) -> None:
        """As it was before the run."""
        self.place.bind(self.place.before)
        refill(self.place.before, self.place.copy)

    def redo(self) -> None:
        """As the run left it."""
        copied = plain(self.after) and not self.itself
        self.place.bind(snapshot(self.after) if copied else self.after)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A place that a run leaves bound to tensors, alone or in a container; each call binds it anew.

    `first` and `count`: where its leaves are among the outputs of the record.
    """

    place: Place
    structure: Structure
    first: int
    count: int
    at: Frame | LazyFrame | None
    kept: Mapping[int, Kept]
    """the others of its leaves, by their places among all"""
    like: int | None = None
    """the number of an earlier state that is the same object"""

    def put(
        self, outputs: Sequence[Any], inputs: Sequence[Any], call: Any, made: list[Any]
    ) -> None:
        """Bind it to what a call has computed.

        Args:
            outputs: all that the call has computed.
            inputs: those of the graph.
            call: the arguments, positional ones and others.
            made: what the states before it hold; takes what it does.
        """
        made.append(item := self._made(outputs) if self.like is None else made[self.like])
        if isinstance(self.place, OnInput):
            vars(inputs[self.place.index])[self.place.name] = item
        elif isinstance(self.place, OnGradient):
            inputs[self.place.index].grad = item
        elif isinstance(self.place, OnData):
            inputs[self.place.index].data = item
        elif isinstance(self.place, OnArguments):
            fill_in_place(item, call)
        else:
            self.place.bind(item)

    def _made(self, outputs: Sequence[Any]) -> Any:
        if self.structure is LEAF and not self.kept:
            return outputs[self.first]
        return self.built(iter(outputs[self.first : self.first + self.count]))

    def built(self, leaves: Iterator[Any]) -> Any:
        """What the place is to hold, of its leaves that a call computes."""
        if not self.kept:
            return self.structure.build(leaves)
        before = self.place.now
        count = range(self.count + len(self.kept))
        every = (self.kept[i].of(before) if i in self.kept else next(leaves) for i in count)
        return self.structure.build(every)


def put_all(states: Sequence[State], outputs: Any, inputs: Any, call: Any) -> None:
    """Bind all places to what a call has computed."""
    made = list[Any]()
    for state in states:
        state.put(outputs, inputs, call, made)


@dataclass(frozen=True, slots=True, eq=False)
class StateRead:
    """A tensor, or a number, that the program finds where its calls leave one: read at each call.

    `leaves` are those of the container that it is in, as the capture found it, and `number` its
    own. `kind` is the type of a number, which is given as a tensor. Calling it gives the tensor.

    Raises:
        KeyError: what is there now is nested otherwise, or other plain data.
    """

    place: Place
    structure: Structure
    leaves: tuple[Any, ...]
    number: int
    kind: type | None = None

    def __call__(self) -> torch.Tensor:
        alone = self.structure is LEAF
        found: Any = self.place.now if alone else self._now()[self.number]
        if alone and self.kind is None and not isinstance(found, torch.Tensor):
            raise KeyError(f"what {self.place.name} held")
        return found if self.kind is None else tensor_of(found, self.kind)

    @property
    def holds(self) -> bool:
        """Whether it is nested as it was, and all plain data is the same."""
        return bool(self._now() or True)

    def _now(self) -> list[Any]:
        item = self.place.now
        now, alike = leaves_like(item, self.structure), True
        if now is None:
            pairs, structure = take_apart(item)
            now, alike = [leaf for _, leaf in pairs], structure == self.structure
        if not (alike and all(map(_alike, now, self.leaves))):
            raise KeyError(f"what {self.place.name} held")
        return now


NUMBERS: Mapping[type, torch.dtype] = types.MappingProxyType(
    {
        int: torch.int64,
        float: torch.float64,
    }
)
"""Numbers of Python's that a program may count with, and tensors that hold each as it is"""


def tensor_of(number: Any, kind: type) -> torch.Tensor:
    """A number as a tensor of one element.

    Raises:
        KeyError: it is of another type, or too large.
    """
    whole: Any = number
    if type(number) is not kind or (kind is int and not -(1 << 63) <= whole < 1 << 63):
        raise KeyError(f"a {kind.__name__}, where there is {number!r:.60} now")
    return torch.scalar_tensor(whole, dtype=NUMBERS[kind], device="cpu")


class _Open:
    """In the place of a number that is read at each call."""


OPEN = _Open()


def _alike(now: Any, then: Any) -> bool:
    """Whether a leaf of a state can take the place of another; tensors are checked as inputs."""
    if then is OPEN:
        return True
    if isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    return now is then or (plain(then) and plain(now) and same(now, then))

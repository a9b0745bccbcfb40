"""What a run leaves in Python's state, and what a call finds there: changes, outputs, inputs."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.pydata.containers import LEAF, Structure, leaves_like, named_leaves
from foretrace.ir.pydata.location import Contents, Entry, Location, content_of
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.paths import Path, item_at
from foretrace.ir.pydata.plain_data import plain, same, snapshot


@dataclass(frozen=True, slots=True)
class Change:
    """What a run did to a place: it holds `after` now, or its content is another (None)."""

    place: Location
    after: Any
    rebound: bool
    at: Frame | LazyFrame | None = None
    path: str = ""
    """the path in messages, where its name is not all"""
    itself: bool = False
    """whether it is an object that was there before"""

    @property
    def name(self) -> str:
        """The place as messages name it."""
        return self.path or self.place.name

    @property
    def repeatable(self) -> bool:
        """Whether a call can do it again: a name bound to plain data, an entry that is new.

        Of a container the content depends on what it had before. One in an entry that holds more
        than plain data is none: it could not be built again, and may be filled further.
        """
        if isinstance(self.place, Contents):
            return False
        built = isinstance(self.place, Entry) and self.place.before is MISSING
        built = built and not isinstance(self.after, (dict, list, set, deque))
        return self.rebound and (built or self.itself or plain(self.after))

    def undo(self) -> None:
        """As it was before the run."""
        self.place.restore()

    def redo(self) -> None:
        """As the run left it."""
        copied = plain(self.after) and not self.itself
        self.place.bind(snapshot(self.after) if copied else self.after)


class ItemBefore:  # no dataclass, which would be a container
    """An item that a container had before: the very object, by its path in the content."""

    __slots__ = ("path",)

    def __init__(self, *path: int) -> None:
        self.path = path

    def of(self, content: Any, found: Sequence[Any], built: Sequence[Any]) -> Any:
        """The item."""
        for place in self.path:
            content = content[place]
        return content


class FoundObject:
    """An object of which a call finds the present one, by its number among these."""

    def __init__(self, number: int) -> None:
        self.number = number

    def of(self, content: Any, found: Sequence[Any], built: Sequence[Any]) -> Any:
        """The object."""
        return found[self.number]


class BuiltObject:
    """An object that an earlier state holds, too: the number of that, and where in it."""

    def __init__(self, state: int, path: Path) -> None:
        self.state, self.path = state, path

    def of(self, content: Any, found: Sequence[Any], built: Sequence[Any]) -> Any:
        """The object."""
        return item_at(built[self.state], self.path)


class SameItem:
    """An item that is the same at each call."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def of(self, content: Any, found: Sequence[Any], built: Sequence[Any]) -> Any:
        """The item."""
        return self.item


Kept: TypeAlias = ItemBefore | FoundObject | BuiltObject | SameItem
"""What a place is to hold that no graph gives"""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A place that a run leaves bound to tensors, alone or in a container; calls bind it again.

    `first` and `count`: where its leaves are among the outputs of the record.
    """

    place: Location
    structure: Structure
    first: int
    count: int
    at: Frame | LazyFrame | None
    kept: Mapping[int, Kept]
    """the others of its leaves, by their places among all"""
    on: int | None = None
    """of former contents: the number of the container, among the objects that a call finds"""

    def of_call(self, inputs: Any, call: Any, found: Sequence[Any]) -> Location:
        """The place for one call; arguments as of `put_all`."""
        if self.on is None:
            return self.place.of_call(inputs, call)
        return Contents.of(self.place.name, found[self.on])

    def item(self, outputs: Sequence[Any], found: Sequence[Any], built: Sequence[Any]) -> Any:
        """What it is to hold.

        Args:
            outputs: all that the call has computed.
            found: the objects that it has found.
            built: what the earlier states hold.
        """
        if self.structure is LEAF and not self.kept:
            return outputs[self.first]
        return self.build(iter(outputs[self.first : self.first + self.count]), found, built)

    def build(self, leaves: Iterator[Any], found: Sequence[Any], built: Sequence[Any]) -> Any:
        """What the place is to hold, of its leaves that a call computes; others as `item`."""
        kept = self.kept
        if not kept:
            return self.structure.build(leaves)
        before = self.place.now if self.on is None else content_of(found[self.on])
        count = range(self.count + len(kept))
        every = (kept[i].of(before, found, built) if i in kept else next(leaves) for i in count)
        return self.structure.build(every)


def put_all(
    states: Sequence[State], outputs: Any, inputs: Any, call: Any, found: Sequence[Any]
) -> list[Any]:
    """Bind all places to what a call has computed; gives what each holds.

    Args:
        states: the places.
        outputs: all that the call has computed.
        inputs: those of the graph.
        call: the arguments, positional ones and others.
        found: the objects that it has found.
    """
    built = list[Any]()
    places = [state.of_call(inputs, call, found) for state in states]
    for state in states:
        built.append(state.item(outputs, found, built))
    for place, item in zip(places, built, strict=True):
        place.bind(item)
    return built


@dataclass(frozen=True, slots=True, eq=False)
class StateRead:
    """A tensor, or a number, that the program finds where its calls leave one: read at each call.

    `leaves` are those of the container that it is in, as the capture found it, and `number` its
    own. `kind` is the type of a number, which comes as a tensor. Calling it gives the tensor.

    Raises:
        KeyError: what is there now is nested otherwise, or other plain data.
    """

    place: Location
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
        now, equal = leaves_like(item, self.structure), True
        if now is None:
            pairs, structure = named_leaves(item)
            now, equal = [leaf for _, leaf in pairs], structure == self.structure
        if not (equal and all(map(_replaces, now, self.leaves))):
            raise KeyError(f"what {self.place.name} held")
        return now


NUMBERS: Final[Mapping[type, torch.dtype]] = MappingProxyType(
    {int: torch.int64, float: torch.float64}
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


def _replaces(now: Any, then: Any) -> bool:
    """Whether a leaf of a state can take the place of another; tensors are checked as inputs."""
    if then is OPEN:
        return True
    if isinstance(then, torch.Tensor) or isinstance(now, torch.Tensor):
        return isinstance(then, torch.Tensor) and isinstance(now, torch.Tensor)
    return now is then or (plain(then) and plain(now) and same(now, then))

"""Containers that a program fills, and of which it reads nothing.

`log.append(loss.item())` leaves a longer list each time. Once a run has changed a container, one
more run has a stand-in for it, which takes items and notes whatever else is asked of it. If nothing
is, the content of the container is no guard.
"""

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NoReturn, Self
from weakref import ref

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import every_op
from foretrace.ir.pydata.containers import flatten
from foretrace.ir.pydata.location import WAYS, Contents, Filling, Location
from foretrace.ir.pydata.members import own_kind
from foretrace.ir.pydata.paths import reached
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.pydata.state import Change
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.changed_arguments import BegunArguments
from foretrace.python_state.effects.leaks import collected
from foretrace.python_state.effects.state_outputs import all_known
from foretrace.python_state.snapshot.heap import HeapSnapshot

MANY: Final = frozenset({"extend", "extendleft"})
"""Methods that take the items of an iterable"""
OWN: Final = frozenset({
    "__new__", "__init__", "__getattribute__", "__getattr__", "__setattr__", "__delattr__",
    "__doc__", "__init_subclass__", "__subclasshook__", "__class__", "__class_getitem__",
    "__iadd__",
})  # fmt: skip
"""Methods that Python needs of every object, and those that a stand-in has itself"""
ASKED: Final = frozenset(
    name
    for kind in (*WAYS, dict, int, float)
    for name in dir(kind)
    if name.startswith("__") and name not in OWN
)
"""What Python looks up in the class of an object, and not in the object"""


class _Asks(type):
    """The class of what answers nothing: each special method notes that it was asked."""

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> "_Asks":
        return super().__new__(cls, name, bases, dict.fromkeys(ASKED, _asked) | space)


def _asked(self: "StandIn", *args: Any, **kwargs: Any) -> NoReturn:
    self.note()


class StandIn(metaclass=_Asks):
    """In the place of a container for one run; it is none to C, which cannot look into it."""

    __slots__ = ("__weakref__", "kind", "puts", "read")

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.puts = list[tuple[str, Any]]()
        """what was put there: by which methods, with which arguments"""
        self.read = False
        """whether anything else was asked"""

    def note(self, *args: Any) -> NoReturn:
        """Something is asked of it.

        Raises:
            Refusal: always; a program that catches it is found out by `read`.
        """
        self.read = True
        raise Refusal("the program reads what it fills", kind="side effect", do="read nothing")

    def __getattr__(self, name: str) -> Callable[[Any], None]:
        if name not in WAYS[self.kind]:
            self.note()
        return partial(self._put, name)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # what isinstance asks, which gets eager's answer
        return self.kind

    def __iadd__(self, items: Iterable[Any]) -> Self:
        self.extend(items)
        return self

    def _put(self, way: str, item: Any, /) -> None:
        self.puts.append((way, [*item] if way in MANY else item))


torch_api.register_container(StandIn, StandIn.note, StandIn.note)
"""Else torch's pytree would take it for a leaf by its type, unnoticed"""


class AppendOnlyContainers:
    """The containers of one program of which it may read nothing, as far as its runs have shown."""

    def __init__(self) -> None:
        self._guessed: dict[int, tuple[str, Any, list[Location]]] = {}
        """by id: what it is called, itself, and the places that hold it"""
        self._closed: dict[int, Any] = {}
        """those that the program reads"""
        self._stand_ins: dict[int, StandIn] = {}
        """what stands for them in a run"""
        self._parted: dict[int, ref[StandIn]] = {}
        """the same, when nobody needs it any more"""

    def guess(self, recorded: Recording) -> bool:
        """Take what a run has left otherwise; whether there is more than was known."""
        known, read = len(self._guessed), self._closed.keys() | _read_by(recorded)
        for place in [state.place for state in recorded.states]:
            new = type(place) is Contents and id(place.holder) not in read
            if new and type(place.holder) in WAYS:
                self._take(place.name, place.holder, recorded.requires.python.locations)
        return len(self._guessed) > known

    def _take(self, name: str, holder: Any, reads: Iterable[ReadLocation]) -> None:
        found = [each for each in reads if each.before is holder]
        places = [each for each in (each.location for each in found) if each is not None]
        if places and len(places) == len(found):
            by_key = {each.identity: each for each in places}
            self._guessed[id(holder)] = name, holder, [*by_key.values()]

    def drop(self) -> list[Contents]:
        """Close those that were read, or else all; gives what they hold."""
        every = [*self._stand_ins, *self._parted]
        dropped = [key for key, each in self._stand_ins.items() if each.read] or every
        self._stand_ins, self._parted = {}, {}
        return [self._close(key) for key in dropped]

    def _close(self, key: int) -> Contents:
        name, holder, _ = self._guessed.pop(key)
        self._closed[key] = holder
        return Contents.of(name, holder)

    @contextmanager
    def replaced(self, before: HeapSnapshot, outside: AccessMonitor | None) -> Iterator[None]:
        """Inside, the program finds what stands for them."""
        self._stand_ins, self._parted = {}, {}
        monitored = {} if outside is None else outside.places.borrowed
        for key, (_, holder, places) in [*self._guessed.items()]:
            if before.holders_of(holder) != len(places):  # it may be found by another way
                self._close(key)
                continue
            stand_in = self._stand_ins[key] = StandIn(type(holder))
            monitored[id(stand_in)] = stand_in, holder
        each = self._stand_ins.items()
        pairs = [(place, stand_in) for key, stand_in in each for place in self._guessed[key][-1]]
        try:
            for place, stand_in in pairs:
                place.bind(stand_in)
            yield
        finally:
            for place, stand_in in pairs:
                stand_in.read |= place.now is not stand_in
                place.bind(monitored[id(stand_in)][1])

    def left(
        self, begun: BegunArguments, kept: list[Change], data: list[Change], known: set[int]
    ) -> list[Change]:
        """What each has taken in the run.

        Args:
            begun: its arguments.
            kept: what else it has left.
            data: the places that it has bound otherwise.
            known: the ids of what there was before it.

        Raises:
            Refusal: it reads one, or what it puts there is also elsewhere.
        """
        found = list[Change]()
        others = {id(each.place.holder) for each in (*kept, *data)}
        for key, stand_in in self._stand_ins.items():
            name, holder, _ = self._guessed[key]
            ways = [way for way, _ in stand_in.puts]
            items = [item for _, item in stand_in.puts]
            change = Change(Filling(name, holder, ways), items, rebound=True)
            if stand_in.read or key in others or not _rebuildable(change, known):
                stand_in.note()
            found += [change] if items else []
        check_new(found, begun, known, data)
        return found

    def part(self, outside: AccessMonitor | None) -> list[Any]:
        """Let go of what stands for them; gives the containers."""
        filled = [self._guessed[key][1] for key in self._stand_ins]
        for each in self._stand_ins.values():
            each.puts.clear()
            if outside is not None:
                del outside.places.borrowed[id(each)]
        self._parted = {key: ref(each) for key, each in self._stand_ins.items()}
        self._stand_ins = {}
        return filled

    def check_none_left(self) -> None:
        """Refuse a program that keeps, or returns, what stands for one.

        Raises:
            Refusal: it does.
        """
        if not collected(lambda: all(each() is None for each in self._parted.values())):
            raise Refusal("the program keeps what it fills", kind="side effect", do="keep nothing")


def _read_by(recorded: Recording) -> set[int]:
    """The containers, by id, of which an op reads an item: they need no run more."""
    used = {value for op in every_op(recorded.ops) for value in op.operands}
    reads = [item.read.place for item in recorded.inputs if item.read and item.value in used]
    return {id(place.holder) for place in reads if isinstance(place, Contents)}


def check_new(
    filled: list[Change], begun: BegunArguments, known: AbstractSet[int], data: Iterable[Change]
) -> None:
    """Refuse what a run has put into containers and a call would have two of.

    It was there before, or is in plain data, of which a call binds a copy.

    Args:
        filled: the containers.
        begun: the arguments; what these had when the program began, a call finds.
        known: the ids of what there was before it.
        data: the places that the run has bound to plain data.

    Raises:
        Refusal: there is such a container or object.
    """
    new, found = list[Any](), {id(item) for _, item in begun.inside}
    for change in filled:
        before = {id(item) for item in _items(change.place.before)}
        new += [item for item in _items(change.after) if id(item) not in before]
    inside = {id(item) for path, item in reached(new, found) if path}
    bound = {id(item) for each in data for _, item in reached(each.after)}
    if not inside.isdisjoint(known | bound):
        raise Refusal(
            f"the program puts an object into {filled[0].name} that is elsewhere, too",
            kind="side effect",
            at=filled[0].at,
            do="put a copy there",
        )


def _items(content: Any) -> Iterator[Any]:
    """The items in a copy of what a container holds: a dict's are in pairs."""
    for item in content if isinstance(content, (list, set)) else ():
        yield from item if type(item) is tuple else (item,)


def _rebuildable(change: Change, known: set[int]) -> bool:
    """Whether a call can build all that is put there: no leaf is a container, as a set is one."""
    leaves = flatten(change.after)[0]
    return all_known(change, known) and not any(map(own_kind, leaves))

"""What a program's code may have read outside of its arguments, as it was when it ran."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from types import BuiltinMethodType, MethodType, MethodWrapperType
from typing import Any, Final, Literal, TypeAlias

import torch

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.pydata.location import Entry, Location
from foretrace.ir.pydata.members import MISSING, kept_by_c

How: TypeAlias = Literal["item", "attribute", "cell"]
"""Of what a place is one"""
FOR_GOOD: Final = (MethodType, BuiltinMethodType, MethodWrapperType, partial)
"""Types of which nobody sets the attributes in C"""


class ReadFact:
    """What the program's code may have read, as it was when it ran; a guard asks for the same."""

    __slots__ = ()

    name: str
    """for a message: `the global SCALE`, `net.config.bias`"""
    holder: Any
    """the container, the object or the cell"""

    @property
    def itself(self) -> bool:
        """Whether it is the object that counts, as the program leaves things in it."""
        return False

    @property
    def identity(self) -> tuple[int, object] | None:
        """As `Location` has it; None where it is about more than one location."""
        return None

    @property
    def objects(self) -> tuple[object, ...]:
        """What is to be the same object, or the same data."""
        return ()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among these."""
        return [each for each in self.objects if isinstance(each, torch.Tensor)]

    @property
    def compared(self) -> tuple[object, ...]:
        """The objects with which the code may compare another: these, and the key of an item."""
        return self.objects


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ReadLocation(ReadFact):
    """A place outside of the program that its code may read, and what was there when it ran."""

    name: str
    how: How
    holder: Any
    key: object
    """of an item or attribute"""
    before: object
    """plain data as a copy, all else as the object that it was; MISSING if there was nothing"""
    itself: bool = False
    left: bool = False
    """whether the program itself leaves something else there"""
    filled: bool = False
    """whether it is a container of plain data that the program itself fills"""
    at: Frame | LazyFrame | None = None
    """the line that does"""

    @property
    def variable(self) -> object:
        """The name or key in its holder; of a closure cell, that of the variable."""
        return self.name.rpartition(" ")[2] if self.how == "cell" else self.key

    @property
    def identity(self) -> tuple[int, object]:
        """As `Location` has it."""
        return id(self.holder), self.variable

    @property
    def objects(self) -> tuple[object, ...]:
        """As `ReadFact` has it."""
        return (self.before,)

    @property
    def compared(self) -> tuple[object, ...]:
        """As `ReadFact` has it; a key may be a weak reference, and leads to an object."""
        return self.before, self.key, *led_to(self.key)

    @property
    def location(self) -> Location | None:
        """The location, to be bound; None where nobody can bind it."""
        if isinstance(self.holder, FOR_GOOD):
            return None
        if self.how != "item":
            name = str(self.variable)
            if self.how == "attribute" and kept_by_c(self.holder, name):
                return None
            return Location(name, self.holder, self.before)
        if not isinstance(self.holder, dict):
            return None
        name = self.key if type(self.key) is str else self.name
        return Entry(name, self.holder, self.key, self.before)

    @property
    def changed_inside(self) -> bool:
        """Whether the program itself changes what is there: the second call finds that."""
        return self.left or self.filled

    @property
    def makes(self) -> bool:
        """Whether the program finds nothing there, and leaves something: a call finds it once."""
        return self.left and (self.before is MISSING or self.before is None)


@dataclass(slots=True, eq=False)
class ReadByLibrary(ReadLocation):
    """An attribute that methods of Python's own library read, which nothing may stand for."""

    @property
    def location(self) -> None:
        """None: a run leaves it as it is."""


@dataclass(slots=True, eq=False)
class ReadClassAttribute(ReadLocation):
    """An attribute of a class; the holder is the class's view of its names, which nobody sets."""

    kind: type = object

    @property
    def identity(self) -> tuple[int, object]:
        """As `Location` has it."""
        return id(self.kind), self.key

    @property
    def location(self) -> Location:
        """The location in the class itself."""
        return Location(str(self.key), self.kind, self.before)


@dataclass(slots=True, eq=False)
class AttributeNames(ReadFact):
    """The attributes that an object or a class had: one more may be read, or hide another."""

    name: str
    holder: Mapping[str, object]
    kind: type | None
    """the class whose names a new one would hide"""
    before: frozenset[str]
    by_library: frozenset[str] = frozenset()
    """names that methods of Python's own library read of it, beside those that the code mentions"""


@dataclass(slots=True, eq=False)
class ContainerLength(ReadFact):
    """How many items a container had."""

    name: str
    holder: Sized
    before: int


@dataclass(slots=True, eq=False)
class ContainerKeys(ContainerLength):
    """The keys that a dict had, in order."""

    keys: tuple[object, ...]


@dataclass(slots=True, eq=False)
class ContainerItems(ContainerLength):
    """What a dict had by keys that are not looked up: it may call their class."""

    items: tuple[tuple[object, object], ...]
    """the very keys, and what was there: plain data as a copy, else the object that it was"""

    @property
    def objects(self) -> tuple[object, ...]:
        """As `ReadFact` has it."""
        return tuple(item for _, item in self.items)

    @property
    def compared(self) -> tuple[object, ...]:
        """As `ReadFact` has it; a key may be a weak reference, and leads to an object."""
        keys = [key for key, _ in self.items]
        return *self.objects, *keys, *(each for key in keys for each in led_to(key))


@dataclass(slots=True, eq=False)
class ContainerMembers(ContainerLength):
    """What a set had in it, that is no plain data: the very objects."""

    members: tuple[object, ...]

    @property
    def objects(self) -> tuple[object, ...]:
        """As `ReadFact` has it."""
        return self.members


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ObjectClass(ReadFact):
    """The class that an object had, and the dict of its attributes: a program can set both."""

    name: str
    holder: object
    before: type
    space: Mapping[str, object] | None
    """None if it has no attributes"""


@dataclass(slots=True, eq=False)
class ShownContent(ReadFact):
    """What an object showed that has its content in C; a guard asks it again."""

    name: str
    holder: object
    ask: Callable[[Any], object]
    before: object
    """plain data as a copy, all else as the object that it was"""

    @property
    def objects(self) -> tuple[object, ...]:
        """As `ReadFact` has it."""
        return (self.before,)

    @property
    def compared(self) -> tuple[object, ...]:
        """What it showed, and the object that a weak reference leads to."""
        return self.before, *led_to(self.holder)


def ids_compared(reads: Iterable[ReadFact]) -> set[int]:
    """The ids of all objects with which the code may compare another."""
    found = set[int]()
    for each in reads:
        if isinstance(each, ReadLocation):  # nearly all of them
            found.add(id(each.before))
            found.add(id(each.key))
            found.update(map(id, led_to(each.key)))
        else:
            found.update(map(id, each.compared))
    return found


def led_to(item: object) -> tuple[object, ...]:
    """What an object leads to if it is a weak reference: a call of it gives that."""
    if not issubclass(type(item), weakref.ref):
        return ()
    return (weakref.ref.__call__(item),)  # type: ignore[arg-type]

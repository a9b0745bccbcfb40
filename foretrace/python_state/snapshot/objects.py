"""Snapshots of containers and objects: what each had before a run, what of it is other, put back.

Only methods of Python's own types are called here. A class of the user's may override them: a
frozen dict raises, a logged one counts.
"""

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from operator import attrgetter, is_
from typing import Any

import torch

from foretrace.ir.pydata.location import Location, content_of, refill_content
from foretrace.ir.pydata.members import (
    ANNOTATED,
    DEFAULTS,
    MISSING,
    TEXTS,
    annotations_of,
    bind_name,
    lookup,
    own_kind,
)
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.state import Change
from foretrace.python_state.snapshot.changes import changes_of, content_changes, filled

ATOMS = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format, types.CodeType,
})  # fmt: skip
"""What holds nothing that a program could change"""
EMPTY = frozenset({dict, list, set, OrderedDict})
"""Containers of which a module has a dozen, all empty but a few"""
Name = Callable[[Any], str]
"""What the program calls an object"""


class Snapshot:
    """One thing as it was; `before`: its content, in a form of its own."""

    __slots__ = ("before", "item")

    item: Any
    before: Any

    @property
    def intact(self) -> bool:
        """Whether it is as it was."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Leave it as it was; what has not changed is not touched."""
        if not self.intact:
            self._write()

    def _write(self) -> None:
        """Leave it as it was, of which something is other."""

    def changes(self, name: Name) -> Iterable[Change]:
        """What is other than it was, where it is not intact: names, or the content of the item."""
        return (Change(Location(name(self.item), {}, None), None, rebound=False),)


def changes_in(kept: Snapshot, name: Name) -> Iterable[Change]:
    """What is other than it was; `name`: of an item."""
    return () if kept.intact else kept.changes(name)


def all_are(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return len(now) == len(before) and all(map(is_, now, before))


def _rebuilt(now: Any, before: Any) -> bool:
    """Whether a container holds the same numbers and text, which may be other objects."""
    return plain(before) and plain(now) and same(now, before)


class DictSnapshot(Snapshot):
    """A dict, of whatever class, with its order; also the attributes of an object."""

    __slots__ = ("kind",)

    def __init__(self, item: dict[Any, Any]) -> None:
        self.item = item
        self.kind: Any = OrderedDict if isinstance(item, OrderedDict) else dict
        self.before: dict[Any, Any] = dict.copy(item) if type(item) is dict else self.now

    @property
    def now(self) -> dict[Any, Any]:
        """What it holds now."""
        exact = type(self.item) is dict  # `dict.copy` calls `keys` of a class with an `__iter__`
        return dict.copy(self.item) if exact else dict(self.kind.items(self.item))

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        now = self.kind.values(self.item)
        return self._same_keys() and all(map(is_, now, self.before.values()))

    def _same_keys(self) -> bool:
        item, before = self.item, self.before
        return dict.__len__(item) == len(before) and all(map(is_, self.kind.keys(item), before))

    def _write(self) -> None:
        # a dict with the same keys is at no time without one
        kind, item, before = self.kind, self.item, self.before
        if self._same_keys():
            for (key, old), new in zip(before.items(), list(kind.values(item)), strict=True):
                if new is not old:
                    kind.__setitem__(item, key, old)
        else:
            kind.clear(item)
            for key, old in before.items():
                kind.__setitem__(item, key, old)

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        now, before = self.now, self.before
        same = _rebuilt(now, before)
        return () if same else content_changes(name(self.item), self.item, before, now)


class AttributesSnapshot(DictSnapshot):
    """The attributes of an object or a function."""

    __slots__ = ()

    def others(self) -> Iterable[tuple[str, Any]]:
        """The names that stand for something else now, and what they stood for."""
        now = self.item
        return [(n, old) for n, old in self.before.items() if now.get(n, MISSING) is not old]

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        return changes_of(_unlike(self.item, self.item, self.before))


def _unlike(holder: Any, now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Location]:
    """Each name that stands for something else now, with what it stood for."""
    for name in dict.fromkeys((*before, *now)):
        if now.get(name, MISSING) is not before.get(name, MISSING):
            yield Location(name, holder, before.get(name, MISSING))


class ContentSnapshot(Snapshot):
    """The items of a list, a deque or a set, of whatever class."""

    __slots__ = ()

    def __init__(self, item: Any) -> None:
        self.item, self.before = item, content_of(item)

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        now, before = content_of(self.item), self.before
        return now == before if isinstance(before, set) else all_are(now, before)

    def _write(self) -> None:
        refill_content(self.item, self.before)

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        same = _rebuilt(content_of(self.item), self.before)
        return () if same else (filled(name(self.item), self.item, self.before),)


class NamesSnapshot(Snapshot):
    """Some names that a file, a cell or an object holds, and what they stand for."""

    __slots__ = ()

    def __init__(self, item: Any, names: Iterable[str] = ()) -> None:
        self.item = item
        self.before: dict[str, Any] = {name: lookup(item, name) for name in names}

    def note(self, name: str) -> Any:
        """One more name; gives what it stands for."""
        return self.before.setdefault(name, lookup(self.item, name))

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        return all(lookup(self.item, name) is content for name, content in self.before.items())

    def others(self) -> Iterator[tuple[str, Any]]:
        """The names that stand for something else now."""
        for name, content in self.before.items():
            if lookup(self.item, name) is not content:
                yield name, content

    def _write(self) -> None:
        for name, content in self.others():
            bind_name(self.item, name, content)

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        return changes_of(
            Location(each, self.item, content) for each, content in self.before.items()
        )


class KeptFunctions:
    """Functions, with the defaults and the texts they had: a snapshot of each takes too long."""

    def __init__(self) -> None:
        self._defaults: dict[int, tuple[types.FunctionType, Any, Any]] = {}
        self._texts: list[tuple[types.FunctionType, tuple[Any, ...]]] = []
        self._names: tuple[str, ...] = ()
        """of those texts: all that code mentions, and two for which they are a tuple"""

    def add(self, function: types.FunctionType) -> None:
        """Keep the defaults of a function."""
        kept = function, function.__defaults__, function.__kwdefaults__
        self._defaults.setdefault(id(function), kept)

    def keep_texts(self, mentioned: AbstractSet[str]) -> Iterator[Snapshot]:
        """Keep what else they have in C and code mentions; yields snapshots of annotations."""
        functions = [function for function, _, _ in self._defaults.values()]
        if ANNOTATED in mentioned:
            annotations = ((each, annotations_of(each)) for each in functions)
            for function, found in annotations:
                if found:
                    yield NamesSnapshot(function, [ANNOTATED])
                    yield DictSnapshot(found)
        named = mentioned & TEXTS - {ANNOTATED}
        if named:
            self._names = tuple(named | {"__name__", "__qualname__"})
            texts = attrgetter(*self._names)
            self._texts = [(each, texts(each)) for each in functions]

    def rebound(self) -> Iterator[NamesSnapshot]:
        """Snapshots of the functions that have other defaults, or texts, now."""
        for function, places, names in self._defaults.values():
            if function.__defaults__ is not places or function.__kwdefaults__ is not names:
                yield self._of(function, DEFAULTS, (places, names))
        texts: Any = attrgetter(*self._names) if self._texts else None
        for function, before in self._texts:
            if not all(map(is_, texts(function), before)):
                yield self._of(function, self._names, before)

    @staticmethod
    def _of(
        function: types.FunctionType, names: Iterable[str], before: tuple[Any, ...]
    ) -> NamesSnapshot:
        snapshot = NamesSnapshot(function)
        snapshot.before = dict(zip(names, before, strict=True))
        return snapshot

    def defaults(self) -> Iterator[tuple[Location, Any]]:
        """Where they had defaults, and what."""
        for function, *both in self._defaults.values():
            for name, content in zip(DEFAULTS, both, strict=True):
                if content:
                    yield Location(name, function, None), content


class ClassSnapshot(NamesSnapshot):
    """The attributes of a class; also those that the run adds."""

    __slots__ = ()

    def __init__(self, item: type) -> None:
        self.item, self.before = item, vars(item).copy()  # `dict` would ask it key by key

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        now, before = vars(self.item), self.before
        return len(now) == len(before) and all(map(is_, now.values(), before.values()))

    def others(self) -> Iterator[tuple[str, Any]]:
        return ((each.name, each.before) for each in self._unlike())

    def _unlike(self) -> Iterator[Location]:
        return _unlike(self.item, vars(self.item), self.before)

    def changes(self, name: Name) -> Iterable[Change]:
        """As `Snapshot` has it."""
        return changes_of(self._unlike())


def snapshot_of(item: Any) -> Any:
    """The snapshot of a container; None if it is none that can be changed."""
    kind = own_kind(item)
    if kind is dict:
        return DictSnapshot(item)
    return ContentSnapshot(item) if kind in (list, set, deque) else None

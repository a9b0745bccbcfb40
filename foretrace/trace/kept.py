"""What a container or an object holds, kept before a run and put back after it.

Only methods of Python's own types are called here. A class of the user's may override them: a
frozen dict raises, a logged one counts.
"""

import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import is_
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from foretrace import torch_api
from foretrace.trace.abstract import Abstract
from foretrace.trace.changes import MISSING, cell_content

ATOMS = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format, types.BuiltinFunctionType,
    types.CodeType, Abstract,
})  # fmt: skip
"""What holds nothing that a program could change"""
EMPTY = frozenset({dict, list, set, OrderedDict})
"""Containers of which a module has a dozen, all empty but a few"""


class Kept(Protocol):
    """One thing as it was."""

    item: Any

    def put_back(self) -> None:
        """Leave it as it was; what has not changed is not touched."""


def all_are(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return len(now) == len(before) and all(map(is_, now, before))


def attributes_of(item: Any) -> dict[str, Any] | None:
    """The attributes of an object, without a call of its class."""
    try:
        space = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None
    return space if type(space) is dict else None


class KeptDict:
    """A dict, of whatever class, with its order; also the attributes of an object."""

    __slots__ = ("before", "item", "kind")

    def __init__(self, item: dict[Any, Any]) -> None:
        self.item = item
        self.kind: Any = OrderedDict if isinstance(item, OrderedDict) else dict
        ordered = self.kind is OrderedDict
        self.before: dict[Any, Any] = dict(self.kind.items(item)) if ordered else dict.copy(item)

    def put_back(self) -> None:
        """As `Kept` has it; a dict with the same keys is at no time without one."""
        kind, item, before = self.kind, self.item, self.before
        now = list(kind.values(item))
        if all_are(list(kind.keys(item)), list(before)) and dict.__len__(item) == len(before):
            if not all_are(now, list(before.values())):
                for (key, old), new in zip(before.items(), now, strict=True):
                    if new is not old:
                        kind.__setitem__(item, key, old)
        else:
            kind.clear(item)
            for key, old in before.items():
                kind.__setitem__(item, key, old)


class KeptList:
    """A list."""

    __slots__ = ("before", "item")

    def __init__(self, item: list[Any]) -> None:
        self.item, self.before = item, list.copy(item)

    def put_back(self) -> None:
        """As `Kept` has it."""
        if not all_are(list.copy(self.item), self.before):
            list.__setitem__(self.item, slice(None), self.before)


class KeptSet:
    """A set; its members are told apart as sets do."""

    __slots__ = ("before", "item")

    def __init__(self, item: set[Any]) -> None:
        self.item, self.before = item, set[Any]().union(item)

    def put_back(self) -> None:
        """As `Kept` has it."""
        if not set.__eq__(self.item, self.before):
            set.clear(self.item)
            set.update(self.item, self.before)


class KeptDeque:
    """A deque."""

    __slots__ = ("before", "item")

    def __init__(self, item: deque[Any]) -> None:
        self.item, self.before = item, list(deque.__iter__(item))

    def put_back(self) -> None:
        """As `Kept` has it."""
        if not all_are(list(deque.__iter__(self.item)), self.before):
            deque.clear(self.item)
            deque.extend(self.item, self.before)


class KeptCell:
    """A closure cell."""

    __slots__ = ("before", "item")

    def __init__(self, item: types.CellType) -> None:
        self.item, self.before = item, cell_content(item)

    def put_back(self) -> None:
        """As `Kept` has it."""
        if cell_content(self.item) is self.before:
            return
        if self.before is MISSING:
            del self.item.cell_contents
        else:
            self.item.cell_contents = self.before


class KeptNames:
    """Some names of a file, of which the program's code speaks."""

    __slots__ = ("before", "item")

    def __init__(self, item: dict[str, Any]) -> None:
        self.item, self.before = item, dict[str, Any]()

    def put_back(self) -> None:
        """As `Kept` has it."""
        for name, before in self.before.items():
            if self.item.get(name, MISSING) is before:
                continue
            if before is MISSING:
                del self.item[name]
            else:
                self.item[name] = before


class KeptSlots:
    """The slots of an object."""

    __slots__ = ("before", "item", "slots")

    def __init__(self, item: Any, slots: Iterable[types.MemberDescriptorType]) -> None:
        self.item, self.slots = item, list(slots)
        self.before = [self._held(slot) for slot in self.slots]

    def _held(self, slot: types.MemberDescriptorType) -> Any:
        with suppress(AttributeError):
            return slot.__get__(self.item, type(self.item))
        return MISSING

    def put_back(self) -> None:
        """As `Kept` has it."""
        for slot, before in zip(self.slots, self.before, strict=True):
            if self._held(slot) is before:
                continue
            if before is MISSING:
                slot.__delete__(self.item)
            else:
                slot.__set__(self.item, before)


class KeptClass:
    """The attributes of a class."""

    __slots__ = ("before", "item")

    def __init__(self, item: type) -> None:
        self.item, self.before = item, dict(vars(item))

    def put_back(self) -> None:
        """As `Kept` has it."""
        now, before = dict(vars(self.item)), self.before
        if all_are(list(now.values()), list(before.values())) and now.keys() == before.keys():
            return
        for name in now.keys() - before.keys():
            type.__delattr__(self.item, name)
        for name, held in before.items():
            if now.get(name, MISSING) is not held:
                type.__setattr__(self.item, name, held)


class KeptTensor:
    """What Python sets on a real tensor: `.grad`, `.requires_grad`, hooks, attributes."""

    __slots__ = ("attributes", "before", "item")

    def __init__(self, item: torch.Tensor) -> None:
        self.item, self.before = item, _set_on(item)
        self.attributes: dict[str, Any] = dict.copy(object.__getattribute__(item, "__dict__"))

    def put_back(self) -> None:
        """As `Kept` has it."""
        now, before = _set_on(self.item), self.before
        if now[0] is not before[0]:
            self.item.requires_grad_(before[0])
        if now[1] is not before[1]:
            self.item.grad = before[1]
        if not all_are(now[2:], before[2:]):
            torch_api.set_hooks(self.item, *before[2:])
        attributes = object.__getattribute__(self.item, "__dict__")
        if attributes or self.attributes:
            attributes.clear()
            attributes.update(self.attributes)


def _set_on(tensor: torch.Tensor) -> tuple[Any, ...]:
    grad = tensor.grad if tensor.is_leaf else None
    return tensor.requires_grad, grad, *torch_api.hooks_of(tensor)


class KeptState:
    """What an object holds where Python does not see it, such as a generator's state."""

    __slots__ = ("before", "item", "read", "write")

    def __init__(
        self, item: Any, read: Callable[[Any], Any], write: Callable[[Any, Any], Any]
    ) -> None:
        self.item, self.read, self.write = item, read, write
        self.before = read(item)

    def put_back(self) -> None:
        """As `Kept` has it."""
        self.write(self.item, self.before)


class KeptModule:
    """A module's class, its attributes, and what those that are containers hold."""

    __slots__ = ("attributes", "contents", "item", "kind", "others")

    def __init__(self, item: nn.Module) -> None:
        self.item, self.kind = item, type(item)
        self.attributes = KeptDict(object.__getattribute__(item, "__dict__"))
        self.contents: dict[str, Any] = {}
        self.others: list[Any] = []
        """what it holds that is neither a container nor plain data"""
        for name, held in [
            (name, held)
            for name, held in self.attributes.before.items()
            if type(held) not in ATOMS and (type(held) not in EMPTY or held)
        ]:
            content = kept_container(held)
            if content is None:
                self.others.append(held)
            else:
                self.contents[name] = content

    def parts(self) -> Iterator[Kept]:
        """What is to be put back one by one: a part that fails stops no other."""
        yield self
        yield self.attributes
        yield from self.contents.values()

    def put_back(self) -> None:
        """As `Kept` has it, for its class and for containers that were empty."""
        if type(self.item) is not self.kind:
            object.__setattr__(self.item, "__class__", self.kind)
        for name, held in self.attributes.before.items():
            if type(held) in EMPTY and held and name not in self.contents:
                held.clear()


KINDS: dict[type, Any] = {
    dict: KeptDict, OrderedDict: KeptDict, list: KeptList, set: KeptSet, deque: KeptDeque,
}  # fmt: skip
STATES: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (
        lambda each: each.bit_generator.state,
        lambda each, state: setattr(each.bit_generator, "state", state),
    ),
    np.ndarray: (np.ndarray.copy, lambda each, content: np.ndarray.__setitem__(each, ..., content)),
}
"""How the state of what is no Python is read and written"""


def kept_container(item: Any) -> Any:
    """What is kept of a container; None if it is none."""
    found = KINDS.get(type(item))
    if found is None:
        found = next((kept for kind, kept in KINDS.items() if isinstance(item, kind)), None)
    return None if found is None else found(item)


class _Attempt:
    """Holds what a step raised."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        self.error = None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error
        return True


def put_all_back(kept: Iterable[Kept]) -> list[str]:
    """Leave everything as it was, whatever fails on the way; gives what could not be, in words.

    A step that an interrupt stopped half way is done again; the interrupt is raised in the end.
    """
    failed: list[str] = []
    interrupt: BaseException | None = None
    attempt = _Attempt()
    with torch_api.no_torch_function():
        for each in kept:
            with attempt:
                each.put_back()
            if attempt.error is None:
                continue
            interrupt = interrupt if isinstance(attempt.error, Exception) else attempt.error
            with attempt:
                each.put_back()
            if attempt.error is not None:
                failed.append(f"a {type(each.item).__name__} ({attempt.error})")
    if interrupt is not None:
        raise interrupt
    return failed

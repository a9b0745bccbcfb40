"""What a container or an object holds, kept before a run and put back after it.

Only methods of Python's own types are called here. A class of the user's may override them: a
frozen dict raises, a logged one counts.
"""

import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import is_
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from foretrace import torch_api
from foretrace.arrays import numpy
from foretrace.ir.pydata.members import MISSING, held_by
from foretrace.ir.pydata.places import Place
from foretrace.ir.pydata.plain_data import same_state

ATOMS = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), range, slice, torch.dtype,
    torch.device, torch.Size, torch.layout, torch.memory_format, types.BuiltinFunctionType,
    types.CodeType,
})  # fmt: skip
"""What holds nothing that a program could change"""
EMPTY = frozenset({dict, list, set, OrderedDict})
"""Containers of which a module has a dozen, all empty but a few"""


class Kept(Protocol):
    """One thing as it was."""

    item: Any

    @property
    def intact(self) -> bool:
        """Whether it is as it was."""

    def put_back(self) -> None:
        """Leave it as it was; what has not changed is not touched."""


def all_are(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects in the same order."""
    return len(now) == len(before) and all(map(is_, now, before))


class KeptDict:
    """A dict, of whatever class, with its order; also the attributes of an object."""

    __slots__ = ("before", "item", "kind")

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
        """As `Kept` has it."""
        now = self.kind.values(self.item)
        return self._same_keys() and all(map(is_, now, self.before.values()))

    def _same_keys(self) -> bool:
        item, before = self.item, self.before
        return dict.__len__(item) == len(before) and all(map(is_, self.kind.keys(item), before))

    def put_back(self) -> None:
        """As `Kept` has it; a dict with the same keys is at no time without one."""
        kind, item, before = self.kind, self.item, self.before
        if self.intact:
            return
        if self._same_keys():
            for (key, old), new in zip(before.items(), list(kind.values(item)), strict=True):
                if new is not old:
                    kind.__setitem__(item, key, old)
        else:
            kind.clear(item)
            for key, old in before.items():
                kind.__setitem__(item, key, old)


class KeptAttributes(KeptDict):
    """The attributes of an object or a function."""

    __slots__ = ()

    def places(self) -> Iterator[Place]:
        """What each of them was that is something else now."""
        return _unlike(self.item, self.item, self.before)


def _unlike(holder: Any, now: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[Place]:
    """Each name that stands for something else now, with what it stood for."""
    for name in dict.fromkeys((*before, *now)):
        if now.get(name, MISSING) is not before.get(name, MISSING):
            yield Place(name, holder, before.get(name, MISSING))


class Way(NamedTuple):
    """How what objects of a type hold is read, compared with what it was, and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    same: Callable[[Any, Any], bool] = same_state


class KeptContent:
    """What an object holds by other means than names: members, a state."""

    __slots__ = ("before", "item", "way")

    def __init__(self, item: Any, way: Way) -> None:
        self.item, self.way, self.before = item, way, way.read(item)

    @property
    def now(self) -> Any:
        """What it holds now, as `before` has it."""
        return self.way.read(self.item)

    @property
    def intact(self) -> bool:
        """As `Kept` has it."""
        return self.way.same(self.now, self.before)

    def put_back(self) -> None:
        """As `Kept` has it."""
        if not self.intact:
            self.way.write(self.item, self.before)


class KeptItems(KeptContent):
    """The items of a list or a deque, of whatever class."""

    __slots__ = ()


class KeptState(KeptContent):
    """What Python does not see, such as a generator's state."""

    __slots__ = ()


class KeptNames:
    """Some names that a file, a cell or an object holds, and what they stand for."""

    __slots__ = ("before", "item")

    def __init__(self, item: Any, names: Iterable[str] = ()) -> None:
        self.item = item
        self.before: dict[str, Any] = {name: held_by(item, name) for name in names}

    def note(self, name: str) -> Any:
        """One more name; gives what it stands for."""
        return self.before.setdefault(name, held_by(self.item, name))

    @property
    def intact(self) -> bool:
        """As `Kept` has it."""
        return all(held_by(self.item, name) is held for name, held in self.before.items())

    def places(self) -> Iterator[Place]:
        """What each stood for."""
        return (Place(name, self.item, held) for name, held in self.before.items())

    def put_back(self) -> None:
        """As `Kept` has it."""
        for place in self.places():
            if place.bound:
                place.bind(place.before)


class KeptClass(KeptNames):
    """The attributes of a class; also those that the run adds."""

    __slots__ = ()

    def __init__(self, item: type) -> None:
        self.item, self.before = item, vars(item).copy()  # `dict` would ask it key by key

    @property
    def intact(self) -> bool:
        """As `Kept` has it."""
        now, before = vars(self.item), self.before
        return len(now) == len(before) and all(map(is_, now.values(), before.values()))

    def places(self) -> Iterator[Place]:
        """As `KeptNames` has it."""
        return _unlike(self.item, vars(self.item), self.before)


class KeptTensor:
    """What Python sets on a real tensor: `.grad`, `.requires_grad`, hooks, attributes."""

    __slots__ = ("attributes", "before", "item")

    def __init__(self, item: torch.Tensor) -> None:
        self.item, self.before = item, _set_on(item)
        self.attributes = KeptAttributes(object.__getattribute__(item, "__dict__"))

    @property
    def intact(self) -> bool:
        """As `Kept` has it."""
        return self.flags_intact and self.attributes.intact

    @property
    def flags_intact(self) -> bool:
        """Whether autograd's part is as it was."""
        return all_are(_set_on(self.item), self.before)

    def put_back(self) -> None:
        """As `Kept` has it."""
        now, before = _set_on(self.item), self.before
        if now[0] is not before[0]:
            self.item.requires_grad_(before[0])
        if now[1] is not before[1]:
            self.item.grad = before[1]
        if not all_are(now[2:], before[2:]):
            torch_api.set_hooks(self.item, *before[2:])
        self.attributes.put_back()


def _set_on(tensor: torch.Tensor) -> tuple[Any, ...]:
    grad = tensor.grad if _is_leaf(tensor) else None
    return tensor.requires_grad, grad, *torch_api.hooks_of(tensor)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # one view of several whose memory was written, as FSDP's parameters are
        return False


class KeptModule:
    """A module's class, its attributes, and what those that are containers hold."""

    __slots__ = ("attributes", "contents", "empty", "item", "kind", "others")

    def __init__(self, item: nn.Module) -> None:
        self.item, self.kind = item, type(item)
        self.attributes = KeptAttributes(object.__getattribute__(item, "__dict__"))
        self.contents: dict[str, Any] = {}
        self.empty: list[Any] = []
        """containers with nothing in them"""
        self.others: list[Any] = []
        """what it holds that is neither a container nor plain data"""
        contents, empty, others = self.contents, self.empty, self.others
        for name, held in self.attributes.before.items():
            kind = type(held)
            if kind in EMPTY and not held:
                empty.append(held)
            elif kind in ATOMS:
                pass
            elif (content := kept_container(held)) is not None:
                contents[name] = content
            else:
                others.append(held)

    def containers(self) -> Iterator[Any]:
        """Its attributes that are containers."""
        yield from self.empty
        yield from (content.item for content in self.contents.values())

    def parts(self) -> Iterator[Kept]:
        """What is to be put back one by one: a part that fails stops no other."""
        yield self
        yield self.attributes
        yield from self.contents.values()

    @property
    def intact(self) -> bool:
        """As `Kept` has it."""
        return type(self.item) is self.kind and not any(self.empty)

    def put_back(self) -> None:
        """As `Kept` has it, for its class and for containers that were empty."""
        if type(self.item) is not self.kind:
            object.__setattr__(self.item, "__class__", self.kind)
        for container in filter(None, self.empty):
            container.clear()


def _refill_deque(item: Any, before: list[Any]) -> None:
    deque.__init__(item, before, deque.maxlen.__get__(item))


# Each is written at once: another thread may read it.
LIST = Way(lambda item: list(list.__iter__(item)), list.__init__, all_are)
DEQUE = Way(lambda item: list(deque.__iter__(item)), _refill_deque, all_are)
SET = Way(lambda item: set[Any]().union(item), set.__init__, set.__eq__)
KINDS: dict[type, Callable[[Any], Kept]] = {
    dict: KeptDict,
    OrderedDict: KeptDict,
    list: partial(KeptItems, way=LIST),
    set: partial(KeptContent, way=SET),
    deque: partial(KeptItems, way=DEQUE),
}
STATES: dict[type, Way] = {
    torch.Generator: Way(torch.Generator.get_state, torch.Generator.set_state),
    random.Random: Way(random.Random.getstate, random.Random.setstate),
}


def states() -> Mapping[type, Way]:
    """How the state of generators and the content of arrays is kept, by type; numpy's if loaded."""
    return _with_numpy(numpy())


@cache
def _with_numpy(np: Any) -> Mapping[type, Way]:
    if np is None:
        return STATES
    drawing, array = np.random.RandomState, np.ndarray
    return STATES | {
        drawing: Way(drawing.get_state, drawing.set_state),
        np.random.Generator: Way(
            lambda each: each.bit_generator.state,
            lambda each, state: setattr(each.bit_generator, "state", state),
        ),
        array: Way(array.copy, lambda each, held: array.__setitem__(each, ..., held)),
    }


def kept_container(item: Any) -> Any:
    """What is kept of a container; None if it is none."""
    found = KINDS.get(type(item))
    if found is None:
        bases = type(item).__mro__  # its class as it says itself is Python of the user's
        found = next((kept for kind, kept in KINDS.items() if kind in bases), None)
    return None if found is None else found(item)

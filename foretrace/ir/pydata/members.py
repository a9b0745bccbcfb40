"""What Python objects hold, found without a call of the user's classes."""

import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any, Final

import torch

OWN = (dict, list, tuple, set, frozenset, deque)
"""The builtin kinds of containers of any class, as far as they are looked into"""
CONTENT = "cell_contents"
"""What a closure cell has its item in"""
DEFAULTS = ("__defaults__", "__kwdefaults__")
"""Attributes in C of functions; where there are none, the caller gives what is read"""

ANNOTATED: Final = "__annotations__"
TEXTS: Final = frozenset({ANNOTATED, "__doc__", "__module__", "__name__", "__qualname__"})
"""Others, by which a function runs as before"""
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers of a run"""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()
"""What a name holds that is not bound"""


def lookup(holder: Any, name: str) -> Any:
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


def bind_name(holder: Any, name: str, item: Any) -> None:
    """Let a name stand for an item there; MISSING: for nothing."""
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


def cell_content(cell: types.CellType) -> Any:
    """What a closure cell holds; MISSING if nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def annotations_of(function: types.FunctionType) -> dict[str, Any]:
    """The annotations of a function; none where they are computed when asked for (Python 3.14)."""
    lazy = getattr(function, "__annotate__", None) is not None
    return {} if lazy else function.__annotations__


def function_parts(function: types.FunctionType) -> Iterator[Any]:
    """What a function holds: in cells, as defaults, annotations and attributes."""
    yield from map(cell_content, function.__closure__ or ())
    yield from function.__defaults__ or ()
    spaces = function.__kwdefaults__ or {}, annotations_of(function), function.__dict__
    for space in spaces:
        yield from space.values()
    yield getattr(function, "__annotate__", None)


def attributes_of(item: Any) -> dict[str, Any] | None:
    """The attributes of an object; None if it has no room for them."""
    try:
        space = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return None
    return space if type(space) is dict else None


def slot_names(kind: type) -> list[str]:
    """The slots of a class and of its bases, as `__slots__` names them."""
    return [
        slot.__name__
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for slot in vars(base).values()
        if isinstance(slot, types.MemberDescriptorType)
    ]


def kept_by_c(item: Any, name: str) -> bool:
    """Whether an attribute is a member that a class in C shows: no slot, and maybe for reading."""
    bases = (base for base in type(item).__mro__ if name in vars(base))
    kind = next(bases, None)
    if kind is None or "__slots__" in vars(kind):
        return False
    return isinstance(vars(kind)[name], types.MemberDescriptorType)


def names_in(item: Any) -> dict[str, Any] | None:
    """The attributes and the slots of an object as a new dict; None if it has room for neither.

    A symbolic number leads to all that torch knows of sizes, and is a number.
    """
    if issubclass(type(item), SYMBOLIC):
        return None
    slots, space = slot_names(type(item)), attributes_of(item)
    if space is None and not slots:
        return None
    found = ((name, lookup(item, name)) for name in slots)
    return {name: each for name, each in found if each is not MISSING} | (space or {})


def own_kind(item: Any) -> Any:
    """The builtin type that a container derives from; None if it is no container."""
    kind = type(item)  # its class as it says itself is Python of the user's
    return kind if kind in OWN else next((each for each in OWN if issubclass(kind, each)), None)


def own_length(item: Any) -> int:
    """How many items a container has, asked of Python's own type: a class may say otherwise."""
    return int(own_kind(item).__len__(item))


def own_items(item: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and items of a container, in order; of a set, numbers in the place of keys.

    They are taken at once: another thread may write to it meanwhile.
    """
    kind = own_kind(item)
    if kind is dict:  # of an OrderedDict, `dict.items` has another order
        kind = OrderedDict if isinstance(item, OrderedDict) else dict
        return iter([*kind.items(item)])
    return iter([*enumerate(kind.__iter__(item))])


def members(item: Any) -> Iterator[tuple[Any, Any]]:
    """What a container holds, by key, or else what an object has as attributes, by name."""
    return own_items(item) if own_kind(item) else iter((names_in(item) or {}).items())


PYTHONS_OWN: Final = frozenset({
    "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__doc__",
    "__module__", "__dict__", "__weakref__", "__abstractmethods__", "__static_attributes__",
    "__firstlineno__", "__type_params__", "__parameters__", "__orig_bases__", "__qualname__",
})  # fmt: skip
"""Names that Python adds to classes, some of them later"""

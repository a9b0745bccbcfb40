"""Plain data: numbers, text, enums and containers of them; copied and compared by value."""

import enum
import types
from collections import defaultdict
from typing import Any, Final

import torch

from foretrace.arrays import as_plain, is_array
from foretrace.ir.pydata.members import own_items, own_length

SINGLE: tuple[type, ...] = (
    bool, type(None), type(...), enum.Enum, type, torch.dtype, torch.layout,
    torch.memory_format, types.FunctionType, types.BuiltinFunctionType, types.ModuleType,
    types.CodeType, types.NotImplementedType,
)  # fmt: skip
"""Values of which there is one object for each"""
BY_VALUE = frozenset({int, str, bytes, range, slice, torch.device, torch.Size})
"""Types whose `==` distinguishes all of their values"""
CONTAINERS = frozenset({tuple, list, dict, set, frozenset})
LARGEST = 1000
"""Items of a container up to which it is compared by value"""

DEEPEST = 50
"""How deep data is nested; deeper it may hold itself"""


def plain(item: Any, budget: int = LARGEST) -> bool:
    """Whether it is data through and through: numbers, text, enums, and containers of them."""
    return _count(item, budget) >= 0


def _count(item: Any, budget: int, depth: int = 0) -> int:
    """What is left of the budget after the item; negative if it is too large or no data."""
    if depth > DEEPEST:
        return -1
    kind = type(item)  # its class as it says itself is Python of the user's
    if kind in BY_VALUE or kind in (float, complex) or issubclass(kind, SINGLE):
        return budget - 1
    parts = _parts(item)
    if parts is None:
        return -1
    for part in parts:
        budget = _count(part, budget, depth + 1)
        if budget < 0:
            return -1
    return budget - 1


def _parts(item: Any) -> list[Any] | None:
    kind = type(item)
    if kind is dict:
        return [*item.keys(), *item.values()]
    if kind is defaultdict:
        return [item.default_factory, *item.keys(), *item.values()]
    if kind in CONTAINERS:
        return list(item)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(tuple.__iter__(item))
    return None


def snapshot(item: Any) -> Any:
    """A copy of plain data that no later change reaches."""
    kind, parts = type(item), _parts(item)
    if kind is dict:
        return {key: snapshot(part) for key, part in item.items()}
    if kind is defaultdict:
        return defaultdict(item.default_factory, {k: snapshot(part) for k, part in item.items()})
    if parts is None or issubclass(kind, SINGLE):
        return item
    if kind in CONTAINERS:
        return kind(snapshot(part) for part in parts)
    return tuple.__new__(kind, map(snapshot, parts))


def same(now: Any, before: Any) -> bool:
    """Whether plain data is what a snapshot of it was: types too, 0.0 is not -0.0, NaN is NaN."""
    kind = type(before)
    if type(now) is not kind:
        return False
    if kind is float or kind is complex:
        return repr(now) == repr(before)
    if kind is defaultdict and now.default_factory is not before.default_factory:
        return False
    if kind is dict or kind is defaultdict:
        return list(now) == list(before) and all(same(now[key], before[key]) for key in before)
    if isinstance(before, (tuple, list)) and kind is not torch.Size:
        pairs = zip(own_items(now), own_items(before), strict=False)
        equal = own_length(now) == own_length(before)
        return equal and all(same(n, b) for (_, n), (_, b) in pairs)
    return now is before or bool(now == before)


OTHER: Final = 0x5BD1E995
"""The bits by which another state of a generator differs"""


def other_state(state: Any) -> Any:
    """Another state of a generator of Python's or numpy's, in the same form."""
    if isinstance(state, dict):  # of one of numpy's new ones
        inner = dict(state["state"])
        name = "state" if "state" in inner else "key"
        return {**state, "state": {**inner, name: inner[name] ^ OTHER}}
    first, numbers, *rest = state
    if isinstance(numbers, tuple):  # of Python's; one of its 624 is enough
        numbers = (numbers[0], numbers[1] ^ OTHER, *numbers[2:])
    else:
        numbers = numbers ^ OTHER
    return (first, numbers, *rest)


def same_state(now: Any, before: Any) -> bool:
    """Whether the state of a generator, or the content of an array, is as it was."""
    if isinstance(now, torch.Tensor):
        return torch.equal(now, before)
    if is_array(now):
        now, before = as_plain(now), as_plain(before)
        return bool(now.dtype == before.dtype and now.tobytes() == before.tobytes())
    if isinstance(now, dict):
        return all(same_state(now[key], before[key]) for key in before)
    if isinstance(now, tuple) and not BY_VALUE.issuperset(map(type, now)):
        return all(map(same_state, now, before))
    return bool(now == before)  # Python's own generator has 625 numbers

"""What the fields of a record may hold: told by each form, checked before anything is made of it.

Some of it becomes text of generated functions (names, numbers, lines), which may say nothing else.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sympy

Kind: TypeAlias = Callable[[Any], bool]
"""Whether a field may hold this"""


def any_value(item: Any) -> bool:
    """What an operator takes or gives: nothing that is decoded can do harm by itself."""
    return True


def instance_of(*types: type) -> Kind:
    """Of one of these types, and of no other that derives from it."""
    return lambda item: type(item) in types


def subclass_of(*types: type) -> Kind:
    """Of one of these types."""
    return lambda item: isinstance(item, types)


def optional(kind: Kind) -> Kind:
    """That, or None."""
    return lambda item: item is None or kind(item)


def sequence_of(kind: Kind, of: type[Any] = tuple) -> Kind:
    """A tuple, or list, of that."""
    return lambda item: isinstance(item, of) and all(map(kind, item))


def tuple_of(*kinds: Kind) -> Kind:
    """A tuple with one of each."""
    return lambda item: (
        type(item) is tuple
        and len(item) == len(kinds)
        and all(kind(each) for kind, each in zip(kinds, item, strict=True))
    )


def table(key: Kind, value: Kind) -> Kind:
    """A dict from that to that."""
    return lambda item: (
        type(item) is dict and all(map(key, item)) and all(map(value, item.values()))
    )


def size(item: Any) -> bool:
    """A number, or an expression over symbols."""
    return type(item) is int or isinstance(item, sympy.Basic)


def text(item: Any) -> bool:
    """Text on one line."""
    return type(item) is str and "\n" not in item and "\r" not in item and "\0" not in item


def keywords(item: Any) -> bool:
    """Keyword arguments: generated code has their names as they are."""
    return type(item) is dict and all(type(k) is str and k.isidentifier() for k in item)


NUMBER, TRUTH = instance_of(int), instance_of(bool)
SIZES: Kind = sequence_of(size)


def check(fields: Mapping[str, Kind], given: Mapping[str, Any]) -> str:
    """The first field that holds what it may not, in words; empty if none does."""
    wrong = (name for name, kind in fields.items() if not kind(given[name]))
    return next((f"{name} is {given[name]!r:.60}" for name in wrong), "")

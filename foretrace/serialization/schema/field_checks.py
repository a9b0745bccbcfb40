"""Predicates on the fields of a record, checked before an object is built from them.

Names, numbers and lines become text of generated functions, so their form is checked strictly.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import sympy

Kind: TypeAlias = Callable[[Any], bool]
"""Whether a field may hold an object"""


def any_value(item: Any) -> bool:
    """Any operand or result of an operator: no decoded object can do harm by itself."""
    return True


def instance_of(*types: type) -> Kind:
    """Exactly one of these types: no subclass."""
    return lambda item: type(item) in types


def subclass_of(*types: type) -> Kind:
    """One of these types or a subclass."""
    return lambda item: isinstance(item, types)


def optional(kind: Kind) -> Kind:
    """`kind` or None."""
    return lambda item: item is None or kind(item)


def sequence_of(kind: Kind, of: type[Any] = tuple) -> Kind:
    """A tuple, or another sequence type `of`, with items of `kind`."""
    return lambda item: isinstance(item, of) and all(map(kind, item))


def tuple_of(*kinds: Kind) -> Kind:
    """A tuple with one item of each kind."""
    return lambda item: (
        type(item) is tuple
        and len(item) == len(kinds)
        and all(kind(each) for kind, each in zip(kinds, item, strict=True))
    )


def table(key: Kind, value: Kind) -> Kind:
    """A dict with keys and values of these kinds."""
    return lambda item: (
        type(item) is dict and all(map(key, item)) and all(map(value, item.values()))
    )


def size(item: Any) -> bool:
    """A size: an integer or an expression over symbols."""
    return type(item) is int or isinstance(item, sympy.Basic)


def text(item: Any) -> bool:
    """Text on one line."""
    return type(item) is str and "\n" not in item and "\r" not in item and "\0" not in item


def keywords(item: Any) -> bool:
    """Keyword arguments: generated code uses their names."""
    return type(item) is dict and all(type(k) is str and k.isidentifier() for k in item)


NUMBER, TRUTH = instance_of(int), instance_of(bool)
SIZES: Kind = sequence_of(size)


def check(fields: Mapping[str, Kind], values: Mapping[str, Any]) -> str:
    """The first field with a value that it may not hold, in words; empty if there is none."""
    wrong = (name for name, kind in fields.items() if not kind(values[name]))
    return next((f"{name} is {values[name]!r:.60}" for name in wrong), "")

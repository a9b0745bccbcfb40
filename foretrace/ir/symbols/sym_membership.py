"""`n in container` of a number that data decides: compared with each key, it stays open.

A dict or a set asks for a hash, which is that of one number alone. Where the code that runs asks
whether a container holds it, the keys are known, and each comparison is a guard of its own.
"""

import functools
import sys
from types import CodeType, FrameType
from typing import Any, Final

from foretrace.ir.source.instructions import (
    ATTRIBUTE,
    CELL,
    CONSTANT,
    GLOBAL,
    LOAD,
    LOCAL,
    Instruction,
    contains_at,
    instructions,
)

NAMES: Final = tuple((LOAD, place) for place in (LOCAL, CELL, GLOBAL, CONSTANT))
"""How code begins to name a container"""
NUMBERS: Final = frozenset({int, float, bool})
HASHED: Final = (dict, set, frozenset)
NONE: Final = frozenset({str, bytes, type(None)})
"""Types of keys that no number equals"""
MOST: Final = 64
"""Keys with which a number is compared"""


def keys_asked(at: FrameType) -> list[Any] | None:
    """The numbers among the keys of a container that the code asks whether it holds what is hashed.

    None where it does something else, or where keys may equal what holds the number.
    """
    if not contains_at(at.f_code, at.f_lasti):
        return None
    container = _found(at, _named(at.f_code, at.f_lasti))
    kind: Any = next((each for each in HASHED if issubclass(type(container), each)), None)
    if kind is None or type(container).__contains__ is not kind.__contains__:
        return None
    keys = [*kind.__iter__(container)]
    found = [key for key in keys if type(key) in NUMBERS]
    others = (type(key) in NUMBERS | NONE for key in keys)
    return found if len(found) <= MOST and all(others) else None


@functools.lru_cache(256)
def _named(code: CodeType, offset: int) -> tuple[Instruction, ...]:
    """What names the right side, from the first name to the last attribute, if names do."""
    before = [step for step in instructions(code) if step.offset < offset]
    chain = list[Instruction]()
    while before and before[-1].kind == (LOAD, ATTRIBUTE):
        chain.append(before.pop())
    if not before or before[-1].kind not in NAMES:
        return ()
    return (before[-1], *reversed(chain))


def _found(at: FrameType, names: tuple[Instruction, ...]) -> Any:
    """What these names stand for, without a call of anything of the user's; None if nothing."""
    if not names:
        return None
    first, *others = names
    if first.of == CONSTANT:
        return first.arg
    spaces = at.f_globals if first.of == GLOBAL else at.f_locals
    item = spaces.get(first.arg)
    for each in others:
        try:
            item = object.__getattribute__(item, "__dict__").get(each.arg)
        except AttributeError:
            return None
    return item


def hash_of(number: Any, at: FrameType) -> int:
    """The hash of an open number, which the code at a frame asks for."""
    keys = keys_asked(at)
    if keys is None:
        return hash(int(number))
    return next((hash(key) for key in keys if number == key), hash(None))


def asking() -> FrameType:
    """The code that runs where the caller of this was called."""
    return sys._getframe(2)

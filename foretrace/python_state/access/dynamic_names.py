"""Names of attributes that no code mentions: `getattr(item, name)`, `attrgetter`.

Bytecode says which instructions give the object and the name; where these load a local, a cell, a
global or a constant, the frame has the values.
"""

import builtins
import dataclasses
import operator
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from foretrace.ir.pydata.members import MISSING
from foretrace.ir.source.instructions import (
    CELL,
    CONSTANT,
    GLOBAL,
    LOAD,
    LOCAL,
    NAME,
    Instruction,
)
from foretrace.ir.source.operand_stack import Flow

BY_NAME: Final = frozenset({"getattr", "hasattr"})
"""Functions of Python's own that read an attribute by a name"""
ALL: Final = frozenset({"vars", "dir"})
"""Functions that list all attributes"""
READERS: Final = BY_NAME | ALL
FUNCTIONS: Final = frozenset(vars(builtins)[name] for name in READERS)
GETTERS: Final = (operator.attrgetter, operator.methodcaller)
OF_DATACLASSES: Final = frozenset({
    "_asdict_inner", "_astuple_inner", "asdict", "astuple", "replace", "_replace",
})  # fmt: skip
"""Functions of `dataclasses` that read all fields of an object"""


class Site(NamedTuple):
    """What gives the object and the name of one call; None where several may, or it is unknown."""

    item: Instruction | None
    name: Instruction | None


class Read(NamedTuple):
    """An attribute that is read; MISSING where the frame does not say of what, or by which name."""

    item: Any
    name: Any


def read_at(frame: FrameType) -> Read | None:
    """What a frame is about to read by such a function; None where the code has the name."""
    found = _sites(frame.f_code).get(frame.f_lasti, Site(None, None))
    if found.name is not None and (found.name.does, found.name.of) == (LOAD, CONSTANT):
        return None
    return Read(_value(frame, found.item), _value(frame, found.name))


@cache
def passes_on(code: CodeType) -> bool:
    """Whether code hands such a function to others, who call it with names of their own."""
    if READERS.isdisjoint(code.co_names):
        return False
    flow = Flow(code)
    return not flow.understood or any(
        flow.instructions[taken.by].does != "call" or flow.called(taken.by).place != taken.place
        for place, each in enumerate(flow.instructions)
        if each.does == LOAD and each.of in (GLOBAL, NAME) and each.arg in READERS
        for taken in flow.takers(place)
    )


@cache
def _sites(code: CodeType) -> dict[int, Site]:
    """The calls of such functions by name, by their offsets in the code."""
    if READERS.isdisjoint(code.co_names):
        return {}
    flow, found = Flow(code), dict[int, Site]()
    for place, each in enumerate(flow.instructions):
        if each.does == "call" and place in flow.operands:
            called = flow.called(place)
            names = {flow.instructions[n].arg for n in called.function if n >= 0}
            if names and names <= READERS:
                source = [_only(flow, item) for item in called.arguments[:2]]
                source += [None] * (2 - len(source))
                found[each.offset] = Site(*source)
    return found


def _only(flow: Flow, item: Iterable[int]) -> Instruction | None:
    places = [*item]
    return flow.instructions[places[0]] if len(places) == 1 and places[0] >= 0 else None


def _value(frame: FrameType, source: Instruction | None) -> Any:
    """The value that an instruction loads; MISSING where it was computed."""
    if source is None or source.does != LOAD:
        return MISSING
    if source.of in (LOCAL, CELL):
        return frame.f_locals.get(source.arg, MISSING)
    if source.of in (GLOBAL, NAME):
        return frame.f_globals.get(source.arg, frame.f_builtins.get(source.arg, MISSING))
    return source.arg if source.of == CONSTANT else MISSING


def names_of_getters(items: Iterable[Any]) -> Iterator[str]:
    """The names that getters of `operator` have, among objects."""
    for each in items:
        if isinstance(each, GETTERS):
            names: Any = each.__reduce__()[1]
            yield from (part for name in names if isinstance(name, str) for part in name.split("."))


def reads_fields(code: CodeType) -> bool:
    """Whether it is a function of `dataclasses` that reads all fields of its first argument."""
    return code.co_filename == dataclasses.__file__ and code.co_name in OF_DATACLASSES

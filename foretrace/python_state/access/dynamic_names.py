"""Names of attributes that no code mentions: `getattr(item, name)`, `attrgetter`.

Bytecode says which instructions give the object and the name; where these load a local, a cell, a
global or a constant, the frame has the values.
"""

import builtins
import dataclasses
import dis
import inspect
import operator
from collections.abc import Iterable, Iterator
from functools import cache
from types import CodeType, FrameType, MappingProxyType
from typing import Any, Final, NamedTuple

from foretrace.ir.pydata.members import MISSING, attributes_of
from foretrace.ir.source.instructions import (
    ATTRIBUTE,
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
CALLED: Final = READERS | {"globals"}
"""All of these functions"""
GETTERS: Final = (operator.attrgetter, operator.methodcaller)
READ_ALL: Final = MappingProxyType({
    dataclasses.__file__: frozenset({
        "_asdict_inner", "_astuple_inner", "asdict", "astuple", "replace", "_replace",
    }),
    inspect.__file__: frozenset({"getmembers", "getmembers_static"}),
})  # fmt: skip
"""Functions of Python's own library that read all attributes of their first argument"""


UNPACKS: Final = dis.opmap["CALL_FUNCTION_EX"]
"""Calls with arguments that are unpacked"""
Chain = tuple[Instruction, ...]
"""An instruction that loads an object, and the attributes that are taken of it; empty: unknown"""


class Site(NamedTuple):
    """What the object and the name of one call are loaded by."""

    item: Chain
    name: Chain


class Read(NamedTuple):
    """An attribute that is read; MISSING where the frame does not say of what, or by which name."""

    item: Any
    name: Any


def read_at(frame: FrameType) -> Read | None:
    """What a frame is about to read by such a function; None where the code has the name."""
    found = _sites(frame.f_code).get(frame.f_lasti, Site((), ()))
    if found.name and (found.name[0].does, found.name[0].of) == (LOAD, CONSTANT):
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
                known = () if each.opcode == UNPACKS else called.arguments[:2]  # `getattr(*pair)`
                loads = [_chain(flow, item) for item in known]
                found[each.offset] = Site(*loads, *[()] * (2 - len(loads)))
    return found


def dicts_read(frame: FrameType) -> Iterator[Any]:
    """The objects whose `__dict__` a call reads that begins; MISSING for those that it computes."""
    yield from (_value(frame, chain) for chain in dicts_in(frame.f_code))


@cache
def dicts_in(code: CodeType) -> tuple[Chain, ...]:
    """What code takes the `__dict__` of."""
    if "__dict__" not in code.co_names:
        return ()
    flow = Flow(code)
    return tuple(
        [
            _chain(flow, flow.operands[place][0]) if place in flow.operands else ()
            for place, each in enumerate(flow.instructions)
            if (each.does, each.of, each.arg) == (LOAD, ATTRIBUTE, "__dict__")
        ]
    )


def _chain(flow: Flow, item: Iterable[int]) -> Chain:
    places = [*item]
    if len(places) != 1 or places[0] < 0:
        return ()
    last = flow.instructions[places[0]]
    if last.of != ATTRIBUTE:
        return (last,)
    before = _chain(flow, flow.operands[places[0]][0])
    return (*before, last) if before else ()


def _value(frame: FrameType, chain: Chain) -> Any:
    """The value that instructions load; MISSING where it was computed."""
    if not chain or chain[0].does != LOAD:
        return MISSING
    first, *attributes = chain
    if first.of in (LOCAL, CELL):
        found = frame.f_locals.get(first.arg, MISSING)
    elif first.of in (GLOBAL, NAME):
        found = frame.f_globals.get(first.arg, frame.f_builtins.get(first.arg, MISSING))
    else:
        found = first.arg if first.of == CONSTANT else MISSING
    for each in attributes:  # without a lookup of a class's, which may run
        found = (attributes_of(found) or {}).get(each.arg, MISSING)
    return found


def names_of_getters(items: Iterable[Any]) -> Iterator[str]:
    """The names that getters of `operator` have, among objects."""
    for each in items:
        if type(each) in GETTERS:
            names: Any = each.__reduce__()[1]
            yield from (part for name in names if isinstance(name, str) for part in name.split("."))


def reads_by_name(code: CodeType) -> bool:
    """Whether it may call what reads attributes, or globals, by a name that is computed."""
    return not CALLED.isdisjoint(code.co_names)


def reads_by_itself(code: CodeType) -> bool:
    """Whether it looks up all attributes of its first argument, by names that others mention."""
    return code.co_name == "__getattribute__"


def reads_fields(code: CodeType) -> bool:
    """Whether it is a function of READ_ALL."""
    return code.co_name in READ_ALL.get(code.co_filename, ())

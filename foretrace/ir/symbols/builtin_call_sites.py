"""Where a program calls `int`, `float`, `min`, `max`, `type`: it may call others in a recording.

Python turns any argument of `float(t)` into a number, and a number is fixed; `max` asks which is
larger, which is a guard; the `type` of an open number is none of Python's. A name of the module's
own, which is looked up before Python's, may give one that stays open. It is no `float` to `is` and
to C, so it is there only where the code of the whole module calls it, asks `isinstance`, writes
a type with it, or annotates.
"""

import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from foretrace.errors import Frame
from foretrace.ir.source.instructions import GLOBAL, ITEM, LOAD, NAME, looked_up, nested
from foretrace.ir.source.operand_stack import Flow, Item, Taken

CASTS: Final = frozenset({"int", "float", "min", "max", "type"})
TESTS: Final = frozenset({"isinstance", "issubclass"})
CALLED, AS_TYPE, OTHERWISE, UNREAD = (
    "called",
    "as a type",
    "uses it otherwise than to call it",
    "has instructions of this Python that foretrace does not know",
)
"""How a name is used, the last two as the stack shows them"""
ANNOTATES: Final = "__annotate__"
"""The function that gives the annotations of another one, of a class or of a module (3.14)"""

Uses = tuple[frozenset[str], Mapping[str, str]]
"""The names that are called, and those that are used otherwise, with the first line that does"""
KNOWN: Final = WeakKeyDictionary[types.FunctionType, Uses]()


class NameOfModule(NamedTuple):
    """A name of a module that the module does not bind itself."""

    space: dict[str, Any]
    name: str
    otherwise: str | None
    """why nothing else may stand there; None: it may"""


def uses_of(function: types.FunctionType) -> Uses:
    """How a function uses the names."""
    known = KNOWN.get(function)
    if known is None:
        called, otherwise = set[str](), dict[str, str]()
        for code in nested(function.__code__):
            names, only_called = looked_up(code, CASTS)
            if only_called:
                called |= names
            else:
                for name, use, at in _read(code):
                    if use == CALLED:
                        called.add(name)
                    elif use != AS_TYPE:
                        otherwise.setdefault(name, f"{at.file}:{at.line} in {at.function} {use}")
        known = KNOWN[function] = frozenset(called), otherwise
    return known


def _read(code: types.CodeType) -> Iterator[tuple[str, str, Frame]]:
    """The names that code loads, how it uses each, and in which line."""
    flow = Flow(code)
    for place, each in enumerate(flow.instructions):
        if each.does == LOAD and each.of in (GLOBAL, NAME) and each.arg in CASTS:
            at = Frame(code.co_filename, each.line or code.co_firstlineno, code.co_qualname)
            found = _uses(flow, code, place) if flow.understood else {UNREAD}
            yield from ((each.arg, use, at) for use in found)


def _uses(flow: Flow, code: types.CodeType, place: int) -> set[str]:
    """How what an instruction gives is used, and the type built of it: `(int, float)`."""
    found, waiting, met = set[str](), [place], set[int]()
    while waiting:
        for taken in flow.takers(waiting.pop()):
            if not flow.makes_type(taken):
                found.add(_use(flow, code, taken))
            elif taken.by not in met:
                met.add(taken.by)
                waiting.append(taken.by)
    return found


def _use(flow: Flow, code: types.CodeType, taken: Taken) -> str:
    each = flow.instructions[taken.by]
    if taken.place < 0:
        return UNREAD
    if each.does == "call":
        call = flow.called(taken.by)
        if taken.place == call.place:
            return CALLED
        tests = each.number == len(call.arguments) == len(("item", "classes"))
        return AS_TYPE if tests and _names(flow, call.function) <= TESTS else OTHERWISE
    if (each.does, each.of) == (LOAD, ITEM) or flow.annotates(taken):
        return AS_TYPE
    into = flow.put_into(taken)
    if into is None:
        return OTHERWISE
    kept = code.co_name == ANNOTATES or _names(flow, into) == {"__annotations__"}
    return AS_TYPE if kept else OTHERWISE


def _names(flow: Flow, item: Item) -> set[Any]:
    """By what names something was loaded, whatever way led there."""
    loads = [flow.instructions[place] for place in item if place >= 0]
    return {each.arg if each.does == LOAD else None for each in loads} or {None}


def places_of(
    spaces: Iterable[dict[str, Any]], functions_in: Callable[[Any], list[types.FunctionType]]
) -> list[NameOfModule]:
    """The globals of modules, and the names that may stand for others in them, or may not."""
    found = list[NameOfModule]()
    for space in spaces:
        otherwise = dict[str, str]()
        for item in [*space.values()]:
            own = isinstance(item, type) and item.__module__ == space.get("__name__")
            for each in vars(item).values() if own else (item,):
                for function in functions_in(each):
                    if function.__globals__ is space:
                        for name, why in uses_of(function)[1].items():
                            otherwise.setdefault(name, why)
        free = (name for name in sorted(CASTS) if name not in space)
        found += [NameOfModule(space, name, otherwise.get(name)) for name in free]
    return found

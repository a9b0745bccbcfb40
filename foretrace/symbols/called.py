"""Where a program calls `int`, `float`, `min`, `max`, `type`: it may call others in a recording.

Python makes a number of whatever `float(t)` is given, and a number is fixed; `max` asks which is
larger, which is a guard; the `type` of an open number is none of Python's. A name of the module's
own, which is looked up before Python's, may give one that stays open. It is no `float` to `is` and
to C, so it is there only where the code of the whole module calls it, asks `isinstance`, writes
a type with it, or annotates.
"""

import dis
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

CASTS: Final = frozenset({"int", "float", "min", "max", "type"})
TESTS: Final = frozenset({"isinstance", "issubclass"})
BETWEEN: Final = frozenset({"LOAD_GLOBAL", "LOAD_ATTR", "BUILD_TUPLE", "BINARY_OP", "PRECALL"})
"""What may stand between a class and the end of `isinstance(x, (int, torch.Tensor))`"""

PUSHED: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_CONST", "LOAD_CLOSURE"})
ANNOTATED, CLOSED = 4, 8
"""Flags of MAKE_FUNCTION: below the code of a function are what it closes over, and annotations"""

GLOBAL, NAME = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_NAME"]
WIDE: Final = 128
"""From here on the place of a name in the code takes more than a byte"""

Uses = tuple[frozenset[str], frozenset[str]]
"""The names that are called, and those that are used otherwise"""
KNOWN: Final = WeakKeyDictionary[types.FunctionType, Uses]()


def uses_of(function: types.FunctionType) -> Uses:
    """How a function uses the names."""
    known = KNOWN.get(function)
    if known is None:
        called, otherwise = set[str](), set[str]()
        for code in _codes(function.__code__):
            if not CASTS.isdisjoint(code.co_names) and _looks_up(code):
                _read(code, called, otherwise)
        known = KNOWN[function] = frozenset(called), frozenset(otherwise)
    return known


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if type(inner) is types.CodeType:
            yield from _codes(inner)


def _looks_up(code: types.CodeType) -> bool:
    """Whether one is a name in the code, and not only an attribute, as that of `x.float()`."""
    places = {n for n, name in enumerate(code.co_names) if name in CASTS}
    if max(places) >= WIDE:
        return True
    steps = zip(code.co_code[::2], code.co_code[1::2], strict=True)
    return any((op == GLOBAL and arg >> 1 in places) or (op == NAME and arg in places)
               for op, arg in steps)  # fmt: skip


def _read(code: types.CodeType, called: set[str], otherwise: set[str]) -> None:
    steps = list(dis.get_instructions(code))
    for place, step in enumerate(steps):
        if step.argval not in CASTS or step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        beneath = place > 0 and steps[place - 1].opname == "PUSH_NULL"
        if beneath or (step.opname == "LOAD_GLOBAL" and step.arg is not None and step.arg & 1):
            called.add(step.argval)  # pushed with a NULL beneath, as what is called next is
        elif not (
            _tested(steps[place + 1 :], asks=not TESTS.isdisjoint(code.co_names))
            or _annotates(steps[place + 1 :])
        ):
            otherwise.add(step.argval)


def _tested(after: Iterable[dis.Instruction], *, asks: bool) -> bool:
    """Whether what follows ends `isinstance(x, (float, Tensor))`, or a type: `list[float]`."""
    end = next((step for step in after if step.opname not in BETWEEN), None)
    if end is None or end.opname == "BINARY_SUBSCR":
        return end is not None
    return asks and end.opname == "CALL" and end.arg == len(("item", "classes"))


def _annotates(after: Iterable[dis.Instruction]) -> bool:
    """Whether it becomes an annotation: of a function that is made, or of a name in a class."""
    above = list[object]()  # what is on the stack above it, or above what has become of it
    for step in after:
        if step.opname in PUSHED:
            above.append(step.argval)
        elif step.opname == "BUILD_TUPLE":
            above[-(step.arg or 0) :] = [()] if len(above) >= (step.arg or 0) else []
        elif step.opname in ("BINARY_OP", "BINARY_SUBSCR"):
            above[-2:] = above[-2:-1]
        elif step.opname == "STORE_SUBSCR":
            return above[:-1] == ["__annotations__"]
        else:
            made = step.arg if step.opname == "MAKE_FUNCTION" and step.arg else 0
            return bool(made & ANNOTATED) and len(above) == (2 if made & CLOSED else 1)
    return False


def places_of(
    spaces: Iterable[dict[str, Any]], functions_in: Callable[[Any], list[types.FunctionType]]
) -> list[tuple[dict[str, Any], str]]:
    """The globals of modules, and the names that may stand for others in them."""
    found = list[tuple[dict[str, Any], str]]()
    for space in spaces:
        otherwise = set[str]()
        for item in [*space.values()]:
            own = isinstance(item, type) and item.__module__ == space.get("__name__")
            for each in vars(item).values() if own else (item,):
                for function in functions_in(each):
                    if function.__globals__ is space:
                        otherwise |= uses_of(function)[1]
        found += [(space, name) for name in sorted(CASTS - otherwise) if name not in space]
    return found

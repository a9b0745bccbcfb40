"""The user's line behind a change of Python state, which no op shows.

What changed is seen when the run has ended. The line is found in the bytecode of the functions that
ran: the store, the call that changes a container, or the name by which a function is reached.
"""

import itertools
import sys
from collections import ChainMap, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, TypeAlias

from foretrace.errors import Attempt, Frame, is_library
from foretrace.ir.source.call_site import LIBRARY_DIRS, names_of
from foretrace.ir.source.instructions import (
    ATTRIBUTE,
    CELL,
    CONSTANT,
    DELETE,
    GLOBAL,
    ITEM,
    LOAD,
    LOCAL,
    NAME,
    STORE,
    Instruction,
    instructions,
)

PLACES = (ATTRIBUTE, GLOBAL, CELL, NAME)
BINDS = frozenset((verb, place) for verb in (STORE, DELETE) for place in PLACES)
LOADS = frozenset((LOAD, place) for place in PLACES)
SETS = frozenset({(STORE, ITEM), (DELETE, ITEM)})
CONSTANTS = frozenset({(LOAD, CONSTANT)})
CALLS, IMPORTS = ("call", ""), ("import", "")
MEMBERS = ((LOAD, ATTRIBUTE), ("import from", ""))
FIXED = ((list, tuple), (set, frozenset), (dict, MappingProxyType), (deque, tuple))
MUTATORS = frozenset(
    name
    for kind, fixed in FIXED
    for name in vars(kind).keys() - vars(fixed).keys()
    if not name.startswith("_") and name not in ("copy", "fromkeys", "maxlen")
)
"""Methods of containers that change them: those that their fixed kin lack"""
Names: TypeAlias = ChainMap[str, Any]
"""What the names of a function are; first of all the modules that it imports itself"""
MOST = 400
"""Functions that are looked at: a program may reach whole libraries by name"""


def attribute(item: Any, name: str, default: Any = None) -> Any:
    """What an attribute of any object is, without its class's `__getattr__`, which may raise."""
    kind: Any = type if issubclass(type(item), type) else object
    with Attempt(Exception):  # a property of the user's may raise whatever it likes
        return kind.__getattribute__(item, name)
    return default


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a function: its instructions."""

    code: CodeType
    number: int
    found: tuple[Instruction, ...]

    @property
    def frame(self) -> Frame:
        """The same, for a refusal."""
        return Frame(self.code.co_filename, self.number, self.code.co_qualname)

    def has(self, kinds: Collection[tuple[str, str]], arg: object = None) -> bool:
        """Whether an instruction is one of these, with the argument if one is passed."""
        return any(i.kind in kinds and arg in (None, i.arg) for i in self.found)

    @property
    def changes(self) -> bool:
        """Whether it changes the content of something."""
        return any(
            i.kind in SETS
            or (i.kind in LOADS and i.arg in MUTATORS)
            or (i.does == "operate" and i.arg.endswith("="))
            for i in self.found
        )


class Lines:
    """The lines of a program's functions.

    Args:
        ran: those that are known to have run, with their globals.
        classes: whose methods the program may have called.
    """

    def __init__(
        self, ran: Mapping[CodeType, Mapping[str, Any]], classes: Iterable[type] = ()
    ) -> None:
        self.ran, self.classes = dict(ran), tuple(dict.fromkeys(classes))

    def binding(self, name: str, owner: type | None = None, *, content: bool = False) -> Any:
        """The line that binds a name, or changes what it holds.

        Args:
            name: a global, a closure cell or an attribute.
            owner: the class of the object whose attribute it is.
            content: whether the content has changed, and not what the name is bound to.
        """
        ranks = [
            lambda line: line.has(BINDS, name),
            lambda line: line.has(CONSTANTS, name) and line.has(SETS | {CALLS}),
            lambda line: line.has(LOADS, name) and line.changes,
            lambda line: line.has(LOADS, name),
        ]
        if content:
            ranks.insert(0, ranks.pop(2))
        methods = set(_methods(owner)) if owner is not None else set()
        return self._first(ranks, lambda code: code not in methods)

    def calling(self, *names: str) -> Frame | None:
        """The line that mentions an attribute or global with one of these in its name."""

        def mentions(line: Line) -> bool:
            loaded = [i.arg for i in line.found if i.kind in LOADS | BINDS]
            return any(name in str(each) for name in names for each in loaded)

        return self._first([mentions], lambda _: False)

    def reaching(self, wanted: Callable[[Any], bool]) -> Frame | None:
        """The line that reaches, by names, an object that is wanted."""
        spaces = dict(self._functions())

        def reaches(line: Line) -> bool:
            return any(map(wanted, _objects(line, spaces[line.code])))

        return self._first([reaches], lambda _: False)

    def holding(self, wanted: Callable[[Any], bool]) -> tuple[str, Any] | None:
        """The name by which the program reaches something that is wanted, and what it holds."""
        for code, space in self._functions():
            for name in (*code.co_names, *code.co_freevars):
                if name in space and wanted(space[name]):
                    return name, space[name]
        return None

    def _first(
        self, ranks: list[Callable[[Line], bool]], after: Callable[[CodeType], bool]
    ) -> Frame | None:
        """The line of the first rank; before others that of a function not `after` them."""
        lines = [line for code, _ in self._functions() for line in _lines(code)]
        for rank in ranks:
            found = [line for line in lines if rank(line)]
            if found:
                return min(
                    found, key=lambda line: (after(line.code), line.code not in self.ran)
                ).frame
        return None

    def _functions(self) -> Iterator[tuple[CodeType, Names]]:
        """The functions that ran, then what they or methods of the classes may have called."""
        waiting = [*self.ran.items()]
        done: dict[CodeType, None] = {}
        while waiting and len(done) < MOST:
            code, space = waiting.pop(0)
            if code in done or is_library(code, LIBRARY_DIRS):
                continue
            done[code] = None
            names: Names = ChainMap(_imports(code), space)  # type: ignore[arg-type]
            yield code, names
            waiting += [(c, space) for c in code.co_consts if isinstance(c, CodeType)]
            waiting += self._called(code, names)

    def _called(self, code: CodeType, space: Names) -> Iterator[tuple[CodeType, Mapping[str, Any]]]:
        for item in _reached(code, space):
            function = attribute(item, "__wrapped__", item)
            if isinstance(function, MethodType):
                function = function.__func__
            if isinstance(function, FunctionType):
                yield function.__code__, names_of(function)
        for kind in self.classes:
            for name in code.co_names:
                item = next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)
                item = item.fget if isinstance(item, property) else item
                if isinstance(item, FunctionType):
                    yield item.__code__, names_of(item)


def _methods(kind: type) -> Iterator[CodeType]:
    for each in kind.__mro__:
        yield from (f.__code__ for f in vars(each).values() if isinstance(f, FunctionType))


def _lines(code: CodeType) -> Iterator[Line]:
    by_number: dict[int, list[Instruction]] = {}
    for each in instructions(code):
        if each.line is not None:
            by_number.setdefault(each.line, []).append(each)
    return (Line(code, number, tuple(found)) for number, found in by_number.items())


def _reached(code: CodeType, space: Names) -> list[Any]:
    return [item for line in _lines(code) for item in _objects(line, space)]


def _imports(code: CodeType) -> dict[str, Any]:
    """The modules that a function imports, by their local names."""
    return {
        after.arg: sys.modules.get(each.arg)
        for each, after in itertools.pairwise(instructions(code))
        if each.kind == IMPORTS and after.does == STORE
    }


def _objects(line: Line, space: Names) -> Iterator[Any]:
    """What the names of a line lead to: globals, attributes of modules, imports."""
    at: Any = None
    for each in line.found:
        if each.does == LOAD and each.of in (GLOBAL, NAME, CELL):
            at = space.get(each.arg)
        elif each.kind == (LOAD, LOCAL):
            at = space.maps[0].get(each.arg)
        elif each.kind == IMPORTS:
            at = sys.modules.get(each.arg)
        elif each.kind in MEMBERS and at is not None:
            at = getattr(at, each.arg, None) if isinstance(at, ModuleType) else None
        else:
            continue
        if at is not None:
            yield at

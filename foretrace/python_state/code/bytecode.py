"""What code reads and binds outside of its locals, read from its bytecode."""

import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
from functools import cache, partial
from types import CodeType
from typing import Any, NamedTuple

from foretrace.ir.source.instructions import (
    ATTRIBUTE,
    CELL,
    CONSTANT,
    DELETE,
    GLOBAL,
    ITEM,
    LOAD,
    NAME,
    STORE,
    Word,
    words,
)
from foretrace.ir.source.operand_stack import UNKNOWN, Flow
from foretrace.python_state.code.code_owner import origin_in

GLOBALS = frozenset({(LOAD, GLOBAL), (LOAD, NAME), (STORE, GLOBAL), (DELETE, GLOBAL)})
ANNOTATED = "__annotations__"
"""Where the body of a module or a class, as it is imported, notes its annotations"""
ATTRIBUTES = frozenset({(LOAD, ATTRIBUTE), (STORE, ATTRIBUTE), ("import from", "")})
COUNTING: Mapping[str, tuple[str, ...]] = types.MappingProxyType(
    {
        ATTRIBUTE: (ATTRIBUTE,),
        GLOBAL: (GLOBAL, NAME),
        CELL: (CELL,),
    }
)
"""Where code stores to a name, and where it reads the same from"""
STORES = frozenset((STORE, place) for place in COUNTING)
READS = frozenset((LOAD, place) for places in COUNTING.values() for place in places)
CONSTANTS, IMPORTED = (LOAD, CONSTANT), ("import", "")
NAMED = GLOBALS | ATTRIBUTES | STORES | {(STORE, NAME), (DELETE, NAME), IMPORTED}
LONGEST = 60
"""Letters of a text constant that may be the name of an attribute (`getattr(self, "scale")`)"""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one code object may read."""

    globals: tuple[str, ...]
    attributes: frozenset[str]
    binds: frozenset[str]
    """globals that it may bind"""
    of_modules: tuple[tuple[str, ...], ...]
    """what it reads or may bind in modules: a global, the names from there, and one in a module"""
    counts: frozenset[str]
    """attributes, globals, cells of others and keys that it reads and stores to"""
    stores: frozenset[str]
    """attributes, globals and cells of others that it stores to"""
    names: frozenset[str]
    """what it binds where no function is: globals, or the members of a class"""
    imports: tuple[str, ...]
    """the files that it imports where it runs, as it names them"""


@cache
def reads_of(code: types.CodeType) -> Reads:
    """The names in its bytecode; a nested function is met when it runs."""
    found = words(code)
    texts = {text for text in _texts(code.co_consts) if len(text) <= LONGEST}
    # a cell of its own is a local, where a comprehension or a function inside reads it
    own = frozenset(code.co_cellvars)
    named = [(kind, arg) for kind, arg in found if kind in NAMED]
    stored = [word for word in named if word[0] in STORES]
    stored = [(kind, arg) for kind, arg in stored if kind[1] != CELL or arg not in own]
    return Reads(
        written(dict.fromkeys(arg for kind, arg in named if kind in GLOBALS)),
        frozenset(arg for kind, arg in named if kind in ATTRIBUTES)
        | {text for text in texts if _may_name(text)},
        frozenset(arg for kind, arg in named if kind == (STORE, GLOBAL)),
        tuple(dict.fromkeys(_through(found))),
        frozenset(_counted(found, stored)),
        frozenset(arg for _, arg in stored),
        frozenset(arg for kind, arg in named if kind in ((STORE, NAME), (DELETE, NAME))),
        tuple(dict.fromkeys(arg for kind, arg in named if kind == IMPORTED)),
    )


def written(names: Iterable[str]) -> tuple[str, ...]:
    """The names that a program's text can have: pytest's, in an `assert`, begin with an @."""
    return tuple(name for name in names if name[:1] != "@")


def values_of(
    code: types.CodeType, owners: Collection[str], names: AbstractSet[str]
) -> Iterator[str]:
    """The functions of a module that code does more with than to call them.

    Args:
        code: of the program.
        owners: the names by which the code has the module.
        names: of the functions that count.
    """
    if not names.isdisjoint(reads_of(code).attributes):
        for each in attributes_as_values(code):
            if each.name in names and (not each.of or each.owner in owners):
                yield each.name


def _may_name(text: str) -> bool:
    """Whether a text may be the name of an attribute, or of a file: `import_module("a.b")`."""
    return not text.startswith("__") and all(map(str.isidentifier, text.split(".")))


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    """The texts among constants, those in tuples too: `for name in ("scale", "bias")`."""
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _texts(each)


def imported(code: types.CodeType, space: dict[str, Any]) -> Iterator[str]:
    """The user's files that code imports where it runs; of a relative name all that it may be."""
    for name in reads_of(code).imports:
        package = str(space.get("__package__") or "").split(".")
        above = (".".join(package[:end]) for end in range(len(package), 0, -1))
        known = (name, *(f"{each}.{name}".strip(".") for each in above))
        for each in known:
            file = sys.modules.get(each)
            if isinstance(file, types.ModuleType) and origin_in(vars(file)) == "user":
                yield each


def _counted(code: list[Word], stored: list[Word]) -> Iterator[str]:
    """What it both reads and stores to, by name, or under a key that is text."""
    read = {(kind[1], arg) for kind, arg in code if kind in READS} if stored else set()
    for (_, place), arg in stored:
        if any((of, arg) in read for of in COUNTING[place]):
            yield arg
    for at, (kind, arg) in enumerate(code):
        if kind == CONSTANTS and type(arg) is str:
            after = [word[0] for word in code[at + 1 : at + 3]]
            if after[:1] == [(STORE, ITEM)] or after == [("copy", "")] * 2:
                yield arg


def _through(code: list[Word]) -> Iterator[tuple[str, ...]]:
    """The names of attributes of globals: `package.module.name = 1`, `torch.nn.functional.relu`."""
    way = list[str]()
    for kind, arg in code:
        if way and kind in ((LOAD, ATTRIBUTE), (STORE, ATTRIBUTE)):
            way.append(arg)
            yield tuple(way)
        else:
            way = [arg] if kind in ((LOAD, GLOBAL), (LOAD, NAME)) else []


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """The cells that a function closes over, by their names in its code."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


class Attribute(NamedTuple):
    """An attribute that code loads, and does not just call."""

    of: str
    """where its object is loaded from: LOCAL, CELL, GLOBAL, ATTRIBUTE; "": elsewhere"""
    owner: str
    """the name of its object there"""
    name: str


def _attribute(flow: Flow, place: int) -> Attribute:
    name = str(flow.instructions[place].arg)
    owners = [*flow.operands.get(place, (UNKNOWN,))[0]] if flow.understood else []
    owner = flow.instructions[owners[0]] if len(owners) == 1 and owners[0] >= 0 else None
    if owner is None or owner.does != LOAD or owner.of == CONSTANT:
        return Attribute("", "", name)
    return Attribute(owner.of, str(owner.arg), name)


@cache
def attributes_as_values(code: CodeType) -> frozenset[Attribute]:
    """The attributes that code loads, and does not just call."""
    flow = Flow(code)
    loads = [
        place
        for place, each in enumerate(flow.instructions)
        if (each.does, each.of) == (LOAD, ATTRIBUTE)
    ]
    values = (place for place in loads if not (flow.understood and flow.only_called(place)))
    return frozenset(map(partial(_attribute, flow), values))

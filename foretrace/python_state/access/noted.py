"""What a monitor notes of the code that runs, and of whom it asks what may run."""

import builtins
import math
import os
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import torch

from foretrace.errors import FROM_TEXT, PACKAGE_DIR, Attempt, is_generated
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.members import MISSING, attributes_of
from foretrace.ir.pydata.object_containers import HEAP_TYPE
from foretrace.ir.pydata.plain_data import SINGLE, plain
from foretrace.ir.pydata.read_facts import ShownContent
from foretrace.python_state.access.dynamic_names import Read, dicts_read, reads_by_itself
from foretrace.python_state.code.bytecode import Reads, reads_of, values_of
from foretrace.python_state.code.code_owner import origin, origin_in, origin_of_class
from foretrace.python_state.snapshot.code_references import functions_in

BUILTINS: Final = frozenset(vars(builtins))
IDENTITY_FUNCTIONS: Final = frozenset({"id", "type"})
"""Names of what distinguishes an object from one that stands for it"""

LOOKUP: Final = "__getattribute__"
"""The attribute by which code looks up any attribute of an object"""
ABSTRACT_CHECKS: Final = (ABCMeta.__instancecheck__.__code__, ABCMeta.__subclasscheck__.__code__)
"""What `isinstance` and `issubclass` run for an abstract class"""
MODULE_LOOKUP: Final = torch.nn.Module.__getattr__.__code__
"""What looks into a module's tables, each of which has guards of its own"""


def answers_for_library(code: types.CodeType) -> bool:
    """Whether a function of a library answers for attributes that no dict has."""
    known = code.co_name == "__getattr__" and code.co_argcount in (1, 2)
    return known and code is not MODULE_LOOKUP and not code.co_filename.startswith(PACKAGE_DIR)


IMPORTS: Final = frozenset({"modules", "import_module", "__import__"})
"""Names by which code has a file whose name is a text"""

Notes = tuple[Callable[[types.FrameType], None], ...]
"""What is noted at each call of a function"""


class Refusing(Protocol):
    """Raises what the program is refused for."""

    def called(self, frame: types.FrameType, function: Any) -> None:
        """A function in C is about to be called from a frame."""

    def marks(self, code: types.CodeType) -> bool:
        """Whether it wants to know each call of a Python function."""

    def entered(self, frame: types.FrameType) -> None:
        """Note that such a function begins."""


@dataclass(slots=True)
class Mentions:
    """Names that the code which ran mentions."""

    attributes: set[str] = field(default_factory=set)
    """of attributes that the program's code, or torch's layers, mention"""
    own_attributes: set[str] = field(default_factory=set)
    """those that the program's code mentions"""
    counts: set[str] = field(default_factory=set)
    """of what the program's code, or torch's layers, read and store to"""
    stores: set[str] = field(default_factory=set)
    """those that the program's own code stores to; what it does not read by name it may read by
    another way (`vars(self)`)"""
    switches: bool = False
    """whether code of torch's ran that may switch torch's state"""

    def note_counts(self, frame: types.FrameType) -> None:
        """What the code counts with, and methods of its object that it names and may call."""
        code = frame.f_code
        reads = reads_of(code)
        self.counts |= reads.counts
        if code.co_argcount and code.co_varnames[0] == "self":
            for base in type(frame.f_locals.get("self")).__mro__:
                for name in reads.attributes.intersection(vars(base)):
                    if isinstance(method := vars(base)[name], types.FunctionType):
                        self.counts |= reads_of(method.__code__).counts

    def take(self, other: "Mentions") -> None:
        """Add the attributes that other code mentions."""
        self.attributes |= other.attributes
        self.own_attributes |= other.own_attributes


@dataclass(slots=True)
class Asked:
    """What the code that ran has at hand of Python's own functions."""

    classes: bool = False
    """`type`, by whatever name"""
    identity: bool = False
    """`type` or `id`, or it names either, whatever it is"""
    attributes: bool = False
    """any attribute of any object"""
    listed: dict[int, type] = field(default_factory=dict)
    """by id, the classes of objects whose attributes it lists, or reads by a name that is computed;
    the objects are not kept alive"""
    code: list[tuple[types.CodeType, dict[types.ModuleType, list[str]]]] = field(
        default_factory=list
    )
    """the program's own, with the names by which it has modules whose functions are replaced"""
    checks: dict[tuple[int, int], ShownContent] = field(default_factory=dict)
    """what abstract classes have answered, by the ids of the classes"""
    answers: dict[tuple[int, str], Any] = field(default_factory=dict)
    """what a library's `__getattr__` has answered, by the object's id and the name"""
    ran: set[int] = field(default_factory=set)
    """by id, the code that ran"""
    by_library: set[str] = field(default_factory=set)
    """attributes that code of Python's own library names, which ran"""
    builtins: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)
    """by the id of globals: these, and the names that stand for Python's own in that code"""
    functions: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    """by their ids and a name: the names of a library's module, of which code names that one"""

    def note(self, frame: types.FrameType, reads: Reads) -> None:
        """What the code of a frame has."""
        own = {*python_own(frame, reads)}
        self.identity |= bool(own) or not IDENTITY_FUNCTIONS.isdisjoint(reads.globals)
        self.classes |= "type" in own
        if not reads_by_itself(frame.f_code):
            self.attributes |= LOOKUP in reads.attributes
        owners = {each: names_of(each, frame, reads) for each in (math, torch)}
        self.code.append((frame.f_code, owners))

    def values(self, replaced: Mapping[types.ModuleType, set[str]]) -> Iterator[str]:
        """Which functions of these modules the code does more with than to call: `math.sqrt`."""
        for module, names in replaced.items():
            for code, owners in self.code:
                for name in values_of(code, owners[module], names):
                    yield f"{module.__name__}.{name}"

    def lists(self, read: Read) -> bool:
        """Note an attribute that is read by a name that no code mentions; False: by which one."""
        if isinstance(read.name, str):
            return False
        if read.item is MISSING:
            self.attributes = True
        else:
            self.list_all(read.item)
        return True

    def note_dicts(self, frame: types.FrameType) -> None:
        """Note the objects whose dicts of attributes a call reads."""
        for item in dicts_read(frame):
            self.lists(Read(item, MISSING))

    def list_all(self, item: Any) -> None:
        """Note an object whose attributes are listed, and so those of its classes."""
        self.listed |= {id(each): type(each) for each in (item, *type(item).__mro__)}

    def lists_all(self, item: Any) -> bool:
        """Whether the code may read any attribute of an object; of a class in C it reads none."""
        if not self.attributes and self.listed.get(id(item)) is not type(item):
            return False
        return not isinstance(item, type) or bool(item.__flags__ & HEAP_TYPE)

    def may_call(self, item: Any) -> bool:
        """Whether an attribute that code has listed is no function, or one that ran."""
        return not functions_in(item) or self.has_run(item)

    def has_run(self, item: Any) -> bool:
        """Whether an attribute of a class is a function that ran."""
        if type(item) is types.FunctionType:  # nearly all
            return id(item.__code__) in self.ran
        return any(id(each.__code__) in self.ran for each in functions_in(item))

    def note_check(self, frame: types.FrameType) -> None:
        """Note what an abstract class answers of a class: one may be registered with it later."""
        values = frame.f_locals
        kind, item = values["cls"], values.get("instance", MISSING)
        asked = values["subclass"] if item is MISSING else type(item)
        if "user" in (origin_of_class(kind), origin_of_class(asked)):
            ask = partial(issubclass, asked)
            name = f"issubclass({asked.__name__}, {kind.__name__})"
            check = ShownContent(name, kind, ask, ask(kind))
            self.checks[id(asked), id(kind)] = check

    def note_answer(self, frame: types.FrameType) -> None:
        """Note that a library's `__getattr__` answers code that is not a library's.

        What it answers is looked up when it has: it may bind what it makes at the first question.
        """
        caller = frame.f_back
        if caller is None or origin(caller.f_code, caller.f_globals) == "library":
            return
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        *owner, name = [frame.f_locals[each] for each in names]
        item = owner[0] if owner else sys.modules.get(str(frame.f_globals.get("__name__")))
        if type(name) is str:
            self.answers[id(item), name] = item

    def answered(self) -> Iterator[ShownContent]:
        """What was answered so, where it is plain data."""
        for (_, name), item in self.answers.items():
            attempt, answer = Attempt(Exception), object()
            with attempt:  # the program itself gets the error: there is no answer to compare
                answer = looked_up(item, name)
            if attempt.error is None and plain(answer):
                of = item.__name__ if isinstance(item, types.ModuleType) else type(item).__name__
                yield ShownContent(f"{of}.{name}", item, partial(looked_up, name=name), answer)

    def note_builtins(self, reads: Reads, space: dict[str, Any]) -> None:
        """The names of Python's own that a global may hide later."""
        own = vars(builtins)
        hidden = {name for name in reads.globals if name not in space and name in own}
        if hidden:
            self.builtins.setdefault(id(space), (space, set()))[1].update(hidden)

    def note_named(self, reads: Reads, space: dict[str, Any]) -> None:
        """What the code names in modules of libraries: somebody may put another function there."""
        for way in reads.of_modules:
            table = module_through(way, space)
            if table is not None and way[-1] in table and origin_in(table) != "user":
                self.functions[id(table), way[-1]] = table

    def named(self) -> Iterator[Location]:
        """The functions among these, now that all is as before the run."""
        for (_, name), table in self.functions.items():
            item = table.get(name)
            if callable(item) and not issubclass(type(item), type):
                yield Location(name, table, item)


def module_through(way: Sequence[str], space: dict[str, Any]) -> dict[str, Any] | None:
    """The names of the module whose last attribute a chain from a global names, if it is one."""
    first, *further, _ = way
    module = space.get(first)
    for each in further:  # without a lookup of a class's, which may run
        module = vars(module).get(each) if isinstance(module, types.ModuleType) else None
    return vars(module) if isinstance(module, types.ModuleType) else None


def looked_up(item: Any, name: str) -> object:
    """An attribute of an object by any way; MISSING if there is none."""
    return getattr(item, name, MISSING)


def names_of(module: types.ModuleType, frame: types.FrameType, reads: Reads) -> list[str]:
    """The names by which the code of a frame has a module: globals, cells, its own."""
    code, space = frame.f_code, frame.f_globals
    found = [name for name in reads.globals if space.get(name) is module]
    if code.co_freevars:
        local = frame.f_locals
        found += [name for name in code.co_freevars if local.get(name) is module]
    return [
        *found,
        module.__name__,
        *(code.co_varnames if module.__name__ in reads.imports else ()),
    ]


def state_of_python(reads: Reads, space: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names in files of Python's own library that code names, if they stand for what may change.

    `os.environ`, `sys.argv`: no function, class or file.
    """
    if not IMPORTS.isdisjoint((*reads.attributes, *reads.globals)):
        yield from ((name, sys.modules) for name in sorted(reads.attributes & sys.modules.keys()))
    files = [space.get(name) for name in reads.globals]
    files += [sys.modules.get(name) for name in reads.imports]
    for file in files:
        table = attributes_of(file) if issubclass(type(file), types.ModuleType) else None
        if table is not None and table.get("__name__") in sys.stdlib_module_names:
            for name in sorted(reads.attributes & table.keys()):
                if not isinstance(table[name], SINGLE):
                    yield name, table


def reads_state(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether it is a method that Python writes, or of a file of Python's with state: `os`."""
    return space is vars(os) or (is_generated(code) and code.co_filename == FROM_TEXT)


def python_own(frame: types.FrameType, reads: Reads) -> Iterator[str]:
    """Which of Python's IDENTITY_FUNCTIONS a function has: in a global, a cell, an argument."""
    space, local, names = frame.f_globals, frame.f_locals, vars(builtins)
    items = [space.get(each, names.get(each)) for each in reads.globals]
    items += local.values() if local is not space else ()
    items += [builtins] if "builtins" in reads.imports else ()
    for item in items:
        if item is builtins or item is names:
            yield from IDENTITY_FUNCTIONS & reads.attributes
        yield from (name for name in IDENTITY_FUNCTIONS if item is names[name])

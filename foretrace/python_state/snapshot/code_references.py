"""What code names: the globals, classes, files and functions behind the names in its bytecode.

Asked of the same functions in every capture, so each answer is kept as long as its function lives.
It has names and tables and no values: those are looked up at each use.
"""

import dis
import functools
import sys
import threading
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final
from weakref import WeakKeyDictionary

from foretrace.ir.pydata.members import attributes_of
from foretrace.ir.symbols.builtin_call_sites import CASTS
from foretrace.python_state.code.bytecode import imported, written
from foretrace.python_state.code.code_owner import module_of, origin, origin_in
from foretrace.python_state.snapshot.objects import ATOMS
from foretrace.python_state.snapshot.states_in_c import OUT_OF_SIGHT, states

BINDS_GLOBAL: Final = frozenset({dis.opmap["STORE_GLOBAL"], dis.opmap["DELETE_GLOBAL"]})
SETS_ATTRIBUTE: Final = frozenset({dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]})

MEMO: Final = type(functools.cache(len))
"""The class of memoized functions"""

FOLLOWED = OUT_OF_SIGHT | {"collections", "types", "weakref", "functools", "contextlib", "torch"}
"""Libraries of which objects are followed as those of the user's classes are"""
TOOLS = ("torch._", "torch.fx", "torch.jit", "torch.export", "torch.library", "torch.utils._")
"""Parts of torch that look at programs: no program keeps its state there"""
NO_STATE = frozenset({"builtins", "numpy", "sympy", "mpmath", "networkx", "foretrace"})
NO_VALUES = (
    types.FunctionType, staticmethod, classmethod, property, MEMO, functools.cached_property,
    type, types.ModuleType,
)  # fmt: skip
"""What names stand for that holds no state itself"""
CODE = (*NO_VALUES[:-2], types.MethodType, functools.partial)
HOLDING = (
    dict, list, set, tuple, frozenset, types.MethodType, functools.partial, type(None), Iterator,
)  # fmt: skip
"""Of types that are no user's, what may hold state, beside what `states` names; None: it may be
something else next time"""
FOLLOWS = frozenset({"user", "followed"})
"""Homes of classes whose objects may hold state of the program"""
KEPT_OF_LOGGERS: Final = frozenset({"handlers", "filters", "level", "disabled", "propagate"})
"""Attributes of loggers and their handlers that a program sets by methods"""
OWNERS = (type, types.ModuleType, types.FunctionType)
"""Whose members code may ask for by name"""
MAKING = frozenset({"__init__", "__new__", "__post_init__"})
"""Run when code calls the class"""
UNNAMED = frozenset({
    "forward", "setup_context", "__call__", "__enter__", "__exit__", "__getattr__", "__setattr__",
    "__delattr__", "__getitem__", "__setitem__", "__iter__", "__next__", "__len__",
    "__torch_function__",
})  # fmt: skip
"""Methods that run without a mention of their name"""


@dataclass(slots=True)
class Mentioned:
    """What a function may reach by name outside of its arguments."""

    values: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)
    """tables and names of what may hold state"""
    bound: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """tables and names that the code may bind again"""
    classes: list[type] = field(default_factory=list)
    """classes that it names: it, or a class method of theirs, may set attributes"""
    functions: list[types.FunctionType] = field(default_factory=list)
    """functions of which it may"""
    called: list[types.FunctionType] = field(default_factory=list)
    """functions that it may call"""
    memos: list[Any] = field(default_factory=list)
    memoized: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """tables and names of these"""
    names: set[str] = field(default_factory=set)
    """every name, of attributes too"""
    followed: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    """what names stood for that were looked through here"""
    code: types.CodeType | None = None
    """the code that was read; a program can give a function another"""
    users: bool = False
    """whether it is a function of the user's; torch keeps what it likes in its own"""

    @property
    def unchanged(self) -> bool:
        """Whether the names still stand for what was looked through."""
        # a generator takes twice the time, and each capture asks of hundreds of functions
        for table, name, item in self.followed:  # noqa: SIM110
            if table.get(name) is not item:
                return False
        return True

    def read(self, function: types.FunctionType) -> None:
        """Note what a function mentions."""
        self.code, self.users = function.__code__, of_user(function)
        if self.users:
            items = self._scan(function.__code__, function.__globals__)
            called = (each for item in items for each in self._functions(item))
            self.called += [each for each in called if each.__closure__ or of_user(each)]

    def _functions(self, item: Any) -> list[types.FunctionType]:
        if isinstance(item, MEMO):
            self.memos.append(item)
        return functions_in(item) if isinstance(item, CODE) else []

    def _scan(self, code: types.CodeType, space: dict[str, Any]) -> list[Any]:
        """Note the names in code; gives the functions and classes that they stand for."""
        names, ops = written(code.co_names), opcodes(code)
        self.names.update(names)
        if ops & BINDS_GLOBAL:
            self.bound += [(space, name) for name in names if name in space or name not in CASTS]
        here: list[tuple[Mapping[str, Any], str]] = [(space, n) for n in names if n in space]
        here += ((sys.modules, name) for name in imported(code, space))
        met, setting = set[int](), bool(ops & SETS_ATTRIBUTE)
        for table, name in here:  # and of what it finds: `package.file.Class.method`
            if isinstance(owner := table[name], OWNERS) and id(owner) not in met:
                met.add(id(owner))
                here += self._members(owner, names, setting=setting)
        items = [self._value(table, name) for table, name in here]
        for inner in code.co_consts:
            if type(inner) is types.CodeType:
                items += self._scan(inner, space)
        return items

    def _members(
        self, owner: Any, names: Iterable[str], *, setting: bool
    ) -> list[tuple[Mapping[str, Any], str]]:
        """What the code may ask of a class or a file that it names."""
        if isinstance(owner, type):
            if home(owner) == "user":
                self.classes.append(owner)
            tables = [vars(base) for base in owner.__mro__ if home(base) == "user"]
            asked = {*names, *MAKING, *UNNAMED}
            return [(table, name) for table in tables for name in asked if name in table]
        if isinstance(owner, types.FunctionType) and setting:
            self.functions.append(owner)
        if isinstance(owner, types.ModuleType):
            space = vars(owner)
            if is_users(owner):
                known = [name for name in names if name in space]
                self.bound += [(space, name) for name in known if setting]
                return [(space, name) for name in known]
        return []

    def _value(self, table: Mapping[str, Any], name: str) -> Any:
        """The value of a name, noted if it may hold state."""
        item = table[name]
        if isinstance(item, (*CODE, type, types.ModuleType)):
            self.followed.append((table, name, item))
        if isinstance(item, types.ModuleType) and is_users(item):
            self.values.append((table, name))
        if isinstance(item, MEMO) and isinstance(table, dict):
            self.memoized.append((table, name))
        if isinstance(item, NO_VALUES) or type(item) in ATOMS - {type(None)}:
            return item
        holding = isinstance(item, (HOLDING, tuple(states())))
        if holding or attributes_of(item) or home(type(item)) in FOLLOWS:
            self.values.append((table, name))
        return item


def is_users(file: types.ModuleType) -> bool:
    """Whether a file, or what is typed into a session, may hold state of the program."""
    return origin_in(vars(file)) == "user"


def functions_in(item: Any) -> list[types.FunctionType]:
    """The functions that a method, a property, a partial or a memoized function calls."""
    if type(item) is types.FunctionType:
        return [item]
    if not isinstance(item, CODE):
        return []
    found, queue = list[types.FunctionType](), [item]
    while queue:
        each = queue.pop()
        if type(each) is types.FunctionType:
            found.append(each)
        elif isinstance(each, CODE):
            names = ("__func__", "__wrapped__", "func", "fget", "fset")
            queue += [inner for name in names if (inner := getattr(each, name, None)) is not None]
    return found


KNOWN: Final = WeakKeyDictionary[types.FunctionType, Mentioned]()


def mentioned_by(function: types.FunctionType) -> Mentioned:
    """What its code mentions; what it closes over is no name."""
    known = KNOWN.get(function)
    if known is None or known.code is not function.__code__ or not known.unchanged:
        known = Mentioned()
        known.read(function)
        if not known.names or of_a_module(function.__globals__):
            KNOWN[function] = known
    return known


def of_a_module(space: dict[str, Any]) -> bool:
    """Whether globals live as long as a module: others would live for what is known of code."""
    return getattr(sys.modules.get(space.get("__name__", "")), "__dict__", None) is space


def members_of(kind: type, names: frozenset[str]) -> dict[str, Any]:
    """What of these names a class has, its own before those that it inherits; no library's."""
    found = dict[str, Any]()
    for base in kind.__mro__:
        if base is not object and home(base) == "user":
            table = vars(base)
            for name in names.intersection(table):  # which takes as long as the table is
                if name not in MAKING:
                    found.setdefault(name, table[name])
    return found


def is_users_memo(memo: Any) -> bool:
    """Whether a memoized function is the user's, and what it keeps the program's state."""
    function = memo.__wrapped__
    function = getattr(function, "__func__", function)
    return not isinstance(function, types.FunctionType) or of_user(function)


def of_user(function: types.FunctionType) -> bool:
    """Whether a function is the user's."""
    return origin(function.__code__, function.__globals__) == "user"


@functools.cache
def spaces_of(kind: type) -> tuple[dict[str, Any], ...]:
    """The globals of the code of a class of torch's optimizers or schedulers."""
    members = [each for base in kind.__mro__ for each in vars(base).values()]
    spaces = [each.__globals__ for member in members for each in functions_in(member)]
    known = {id(s): s for s in spaces if str(s.get("__name__")).startswith("torch.optim.")}
    return tuple(known.values())


def named_by_methods(kind: type, known: frozenset[str]) -> frozenset[str]:
    """The names in the code of methods of a class of Python's library that code calls by name.

    And of those that these call. A thread is left as it is; of a logger, what it has, no cache.
    """
    if module_of(kind).partition(".")[0] not in sys.stdlib_module_names:
        return frozenset()
    if issubclass(kind, threading.Thread):
        return frozenset()
    library: Any = kind
    found = _named(library, known & _members(library))
    return found & KEPT_OF_LOGGERS if module_of(kind) == "logging" else found


@functools.cache
def _members(kind: Any) -> frozenset[str]:
    return frozenset(name for base in kind.__mro__ for name in vars(base))


@functools.cache
def _named(kind: Any, called: frozenset[str]) -> frozenset[str]:
    found, queue = set[str](), [*called]
    while queue:
        name = queue.pop()
        members = [vars(base)[name] for base in kind.__mro__ if name in vars(base)]
        for function in (each for member in members for each in functions_in(member)):
            new = set(function.__code__.co_names) - found
            found |= new
            queue += new & _members(kind)
    return frozenset(found)


def home(kind: type) -> str:
    """Whose class it is: "user", "followed" (containers, torch's classes) or "library"."""
    return _home_of(module_of(kind))


@functools.cache
def _home_of(module: str) -> str:
    top = module.partition(".")[0]
    if top in FOLLOWED:
        return "library" if module.startswith(TOOLS) else "followed"
    if top in NO_STATE or (top in sys.stdlib_module_names and top != "__main__"):
        return "library"
    return "user"


def opcodes(code: CodeType) -> frozenset[int]:
    """The opcodes in code."""
    return frozenset(code.co_code[::2])

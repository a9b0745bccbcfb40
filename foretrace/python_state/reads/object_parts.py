"""What of an object is read that no dict of attributes has: parts in C, and what they lead to."""

import builtins
import enum
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from foretrace.ir.program.call_requirements import ModuleState
from foretrace.ir.pydata.members import DEFAULTS, own_items, own_kind, own_length
from foretrace.ir.pydata.plain_data import BY_VALUE, LARGEST, plain
from foretrace.ir.pydata.read_facts import ContainerKeys, ContainerLength, ShownContent
from foretrace.python_state.access.noted import Asked
from foretrace.python_state.code.code_owner import module_of, origin, origin_in, origin_of_class

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = ("_parameters", "_buffers", "_modules")
REGISTERED = (*TABLES, *HOOKS)
"""What a module has its parts in"""
BOUND_IN_C: Final = (types.BuiltinMethodType, types.MethodWrapperType)
"""Methods of classes in C that are bound to an object: `table.get`, `items.__len__`"""
PARTS: Final[Mapping[type, tuple[str, ...]]] = types.MappingProxyType(
    {
        functools.partial: ("func", "args", "keywords"),
        types.MethodType: ("__self__", "__func__"),
        **dict.fromkeys(BOUND_IN_C, ("__self__",)),
        enum.Enum: ("_value_",),
    }
)
"""Attributes in C, by the type that has them"""
OF_ENUMS: Final = frozenset({"_member_map_", "_member_names_", "_value2member_map_"})
"""Attributes of an enumeration that the class of its class reads"""
MATCHED: Final = frozenset({"__match_args__"})
"""Attributes of a class that Python reads by itself, where no method is"""
REGISTRY: Final = "registry"
"""The attribute with the functions of a `functools.singledispatch`, which its own code has"""
WRAPPING: Final = (staticmethod, classmethod)
"""What holds one function in a class"""
NUMBERS: Final = frozenset({bool, float, complex, type(None)})
LEADING: Final = (types.ModuleType, *BOUND_IN_C)
"""What leads on out of a container that is plain data"""
OF_LOGGERS: Final = frozenset({"level", "disabled", "parent", "manager", "_disable"})
"""Attributes of `logging` that decide whether a message is logged; a cache of that is none"""
LIBRARY: Final = sys.stdlib_module_names - {"builtins", "__main__"}
"""Modules of Python's own library, of whose objects the methods read what nobody else names"""


def slots_of_layer(kind: type, mentioned: frozenset[str]) -> list[str]:
    """The slots among these names of a class whose objects hold state in torch's own Python."""
    space = vars(kind)
    named = mentioned & space.keys() if origin_of_class(kind) == "layer" else ()
    return [key for key in sorted(named) if isinstance(space[key], types.MemberDescriptorType)]


def shown_key(key: Any) -> str | None:
    """A key of a dict in words; None if to look it up may call its class."""
    if plain(key):
        return repr(key)
    if isinstance(key, torch.Tensor):
        return f"a tensor{list(key.shape)}"
    if type(key) is tuple:
        parts = [shown_key(part) for part in key]
        return None if None in parts else f"({', '.join(map(str, parts))})"
    kind: Any = type(key)
    if issubclass(kind, weakref.ref):
        kind = type(weakref.ref.__call__(key))
    own = kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__
    return f"a {kind.__name__}" if own else None


def container_fact(name: str, item: Any, items: Sequence[tuple[Any, Any]]) -> ContainerLength:
    """How many items a container has; of a dict that is looked at whole, its keys in order."""
    length, keys = own_length(item), tuple(key for key, _ in items)
    if own_kind(item) is not dict or len(keys) != length or not all(map(plain, keys)):
        return ContainerLength(name, item, length)
    return ContainerKeys(name, item, length, keys)


def names_in(name: str, space: Mapping[str, object]) -> ShownContent:
    """The names in a dict of attributes, in order."""
    return ShownContent(f"the names of {name}", space, tuple, tuple(space))


def hidden_in(space: dict[str, Any], names: frozenset[str]) -> frozenset[str]:
    """Which names of Python's own functions a global hides."""
    return frozenset(space.keys() & names)


def builtins_seen(asked: Asked) -> Iterator[ShownContent]:
    """Facts: no global hides a function of Python's own that code has by that name.

    And that is Python's own.
    """
    used = set[str]()
    for space, names in asked.builtins.values():
        name = f"what the globals of {space.get('__name__')} hide of Python's own"
        ask = functools.partial(hidden_in, names=frozenset(names))
        yield ShownContent(name, space, ask, frozenset())
        used |= names
    if used:
        own = vars(builtins)
        known = sorted(name for name in used if plain(own.get(name)))
        named = functools.partial(_named_in, names=tuple(known))
        yield ShownContent("what is in builtins", own, named, named(own))


def _named_in(space: dict[str, Any], names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple([space.get(name) for name in names])


OWN: Final = f"{__name__.partition('.')[0]}."
"""How the names of foretrace's own files begin"""


class Numbered:
    """Gives each class a number: a guard that had the classes themselves would keep them alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[type], int]] = {}
        self._next = itertools.count()

    def below(self, kind: type) -> tuple[int, ...]:
        """The numbers of the classes that inherit from one; a compiled module's is foretrace's."""
        found: list[type] = type.__subclasses__(kind)
        return tuple(self._of(each) for each in found if not _module_of(each).startswith(OWN))

    def _of(self, kind: type) -> int:
        known = self._known.get(id(kind))
        if known is None or known[0]() is not kind:
            there = weakref.ref(kind, functools.partial(self._forget, id(kind)))
            known = self._known[id(kind)] = there, next(self._next)
        return known[1]

    def _forget(self, key: int, _: object) -> None:
        self._known.pop(key, None)


NUMBERED: Final = Numbered()


def _module_of(kind: type) -> str:
    return str(vars(kind).get("__module__", ""))


def bases_of(kind: type, mentioned: frozenset[str]) -> Iterator[ShownContent]:
    """Facts: what a class inherits from, and, where code asks for them, who does from it."""
    bases = vars(type)["__bases__"].__get__
    yield ShownContent(f"the bases of {kind.__name__}", kind, bases, bases(kind))
    if "__subclasses__" in mentioned:
        name = f"the subclasses of {kind.__name__}, by number,"
        yield ShownContent(name, kind, NUMBERED.below, NUMBERED.below(kind))


def state_of(path: str, module: nn.Module) -> ModuleState:
    """How a module is now."""
    space = vars(module)
    kept = {name: dict(space[name]) for name in REGISTERED if space.get(name)}
    return ModuleState(path, module, module.training, kept)


def items_of(item: Any) -> Iterable[Any]:
    """The items of a container; none of anything else."""
    return (each for _, each in own_items(item)) if own_kind(item) else ()


def parts_in_c(kind: type, item: Any) -> Iterable[str]:
    """Attributes in C by which an object is what it is; of a function, those that may change it."""
    for base in kind.__mro__:
        if base in PARTS:
            return PARTS[base]
    if kind is types.FunctionType:
        return ("__code__", *(name for name in DEFAULTS if getattr(item, name) is not None))
    return ()


def fixed_parts(kind: type, item: Any) -> Iterable[tuple[str, Any]]:
    """Functions that a descriptor calls, by the names under which it has them for good."""
    if issubclass(kind, property):
        return (("fget", item.fget), ("fset", item.fset))
    return (("__func__", item.__func__),) if issubclass(kind, WRAPPING) else ()


def reads_itself(kind: type, ran: frozenset[str]) -> frozenset[str]:
    """Attributes that methods of Python's own library may have read of objects of a class.

    It is one of that library, or inherits from one: a ChainMap, a parser of arguments. The user's
    code names none of them; `ran`: those that code of the library names which ran.
    """
    tops = {module_of(each).partition(".")[0] for each in kind.__mro__}
    if "logging" in tops:
        return OF_LOGGERS
    return frozenset() if tops.isdisjoint(LIBRARY) else ran


def dispatches(item: Any) -> bool:
    """Whether it is what `functools.singledispatch` returns: it has functions by class."""
    registry = vars(item).get(REGISTRY) if type(item) is types.FunctionType else None
    return type(registry) is types.MappingProxyType and item.__globals__ is vars(functools)


def leads_on(item: Any) -> bool:
    """Whether it is a function or a file, and none of a library's, which leaves its own as is.

    Or a method in C that is bound to an object, or a container with a file or such a method in it.
    """
    kind = type(item)
    if kind in BY_VALUE or kind in NUMBERS:  # nearly all
        return False
    if kind is types.FunctionType:
        return origin(item.__code__, item.__globals__) == "user" or dispatches(item)
    if kind in (dict, list, tuple):
        items = itertools.islice(items_of(item), LARGEST)
        return any(isinstance(each, LEADING) and leads_on(each) for each in items)
    if kind in BOUND_IN_C:
        return not (item.__self__ is None or of_a_library(item.__self__))
    if issubclass(kind, types.ModuleType):
        return origin_in(vars(item)) == "user"
    return (issubclass(kind, enum.Enum) or hasattr(kind, "_fields")) and not of_a_library(kind)


def of_a_library(item: Any) -> bool:
    """Whether it is a module or class of torch, Python or ours: its names stay as they are."""
    if isinstance(item, type):
        return origin_of_class(item) != "user"
    return isinstance(item, types.ModuleType) and origin_in(vars(item)) != "user"

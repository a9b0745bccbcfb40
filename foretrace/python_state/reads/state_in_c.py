"""What objects show that keep their state in C, where no dict of attributes has it.

Each type that is known has a row: how its state is asked for, so that a guard can ask again.
"""

import array
import contextvars
import ctypes
import decimal
import gc
import io
import mmap
import os
import queue
import threading
import types
import weakref
from _thread import LockType
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

import torch

from foretrace.arrays import as_plain, is_array, numpy
from foretrace.ir.pydata.members import MISSING, attributes_of
from foretrace.ir.pydata.object_containers import HEAP_TYPE
from foretrace.python_state.reads.process_state import decimal_context

Ask = Callable[[Any], object]
SIMPLE: Final = ctypes.c_int.__mro__[1]
"""What all single numbers of C derive from"""
REFERENCES: Final = (weakref.ref,)
"""What leads to an object that it does not keep"""
BUFFERS: Final = (
    bytearray, memoryview, array.array, SIMPLE, ctypes.Array, ctypes.Structure, ctypes.Union,
    mmap.mmap,
)  # fmt: skip
"""What holds numbers in memory of its own"""
VIEWS: Final = (*map(type, ({}.keys(), {}.values(), {}.items())),)
"""What shows the content of a dict"""
KNOWN_OTHERWISE: Final = frozenset({
    "__class__", "__dict__", "__weakref__", "__code__", "__defaults__", "__kwdefaults__",
    "__globals__", "__builtins__", "__traceback__", "__self__", "__func__",
})  # fmt: skip
"""Attributes in C that are other facts, or that lead to all that a file has"""
MENTIONED: Final[Mapping[type, str]] = types.MappingProxyType({
    torch.Generator: "initial_seed", LockType: "locked", queue.SimpleQueue: "qsize",
})  # fmt: skip
"""What is in another state at each call, with the one question that is a guard if code asks it"""
OF_THREADS: Final = (threading.local,)
"""What has other attributes in each thread"""


def asked_by(item: Any, mentioned: frozenset[str]) -> Ask | None:
    """How the state of an object is asked for; None where its type has no row."""
    kind = type(item)  # its class as it says itself is Python of the user's
    for base in kind.__mro__:
        if base in ROWS:
            return ROWS[base]
    for known, name in MENTIONED.items():
        if issubclass(kind, known):
            return getattr(kind, name) if name in mentioned else None
    loaded = numpy()
    return array_content if loaded is not None and issubclass(kind, loaded.ndarray) else None


def class_behind(reference: Any) -> object:
    """The class of what a weak reference leads to; that of None once it is gone."""
    return type(referent(reference))


def referent(reference: Any) -> Any:
    """What a weak reference leads to."""
    return weakref.ref.__call__(reference)


def names_in_thread(local: Any, names: Iterable[str]) -> frozenset[str]:
    """Which of these names are attributes in this thread."""
    return frozenset(names).intersection(vars(local))


def bytes_in(item: Any) -> object:
    """What a buffer holds, and how."""
    with memoryview(item) as view:
        return f"{view.format} {view.shape} ".encode() + view.tobytes()


def array_content(item: Any) -> object:
    """The same of an array of numpy's, whatever it holds; of objects, which they are.

    With the arrays among its attributes, such as a mask: numpy's own Python reads them.
    """
    parts = [item, *(each for each in (attributes_of(item) or {}).values() if is_array(each))]
    return b"".join(map(_content, map(as_plain, parts)))


def _content(plain: Any) -> bytes:
    form = f"{plain.dtype.str} {plain.dtype.descr} {plain.shape} ".encode()
    return form + bytes(plain.tobytes())


def _value(variable: Any) -> object:
    return variable.get(MISSING)


def _mapping(view: Any) -> object:
    return gc.get_referents(view)[0]


def _environment(environment: Any) -> object:
    return b"\0".join(each for item in vars(environment)["_data"].items() for each in item)


def _written(file: Any) -> object:
    return None if file.closed else (file.getvalue(), file.tell())


ROWS: Final[Mapping[type, Ask]] = types.MappingProxyType(
    {
        weakref.ref: class_behind,
        defaultdict: attrgetter("default_factory"),
        contextvars.ContextVar: _value,
        types.MappingProxyType: _mapping,
        type(os.environ): _environment,
        io.BytesIO: _written,
        io.StringIO: _written,
        **dict.fromkeys(BUFFERS, bytes_in),
        **dict.fromkeys(VIEWS, _mapping),
        decimal.Decimal: decimal_context,
    }
)


def shown_by(kind: type) -> dict[str, Ask]:
    """How attributes are asked for that classes in C have for objects: `__name__`, `args`."""
    bases = [base for base in kind.__mro__ if not base.__flags__ & HEAP_TYPE]
    return {name: ask for base in reversed(bases) for name, ask in _descriptors(base).items()}


def answered(ask: Ask, item: Any) -> object:
    """The attribute; MISSING where it raises, as the content of an empty cell does."""
    try:
        return ask(item)
    except (AttributeError, ValueError, NameError):
        return MISSING


@cache
def _descriptors(kind: type) -> Mapping[str, Ask]:
    """How the attributes of one class in C are asked for, but for KNOWN_OTHERWISE."""
    found = {
        name: item.__get__
        for name, item in vars(kind).items()
        if isinstance(item, (types.GetSetDescriptorType, types.MemberDescriptorType))
    }
    others = KNOWN_OTHERWISE | ({"__annotations__"} if kind is not types.FunctionType else set())
    return {name: ask for name, ask in found.items() if name not in others}

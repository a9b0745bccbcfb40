"""Objects that are containers of their attributes: a cache, a batch, a dict of a class of its own.

This finds what such an object holds, and builds another that holds it, without the user's code.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any
from weakref import ref

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.heap_walk import walk_heap
from foretrace.ir.pydata.members import cell_content, members, names_in, own_items, slot_names
from foretrace.ir.pydata.tensor_classes import TENSOR, as_class, tensor_parts
from foretrace.ir.source.state_change_lines import attribute

HEAP_TYPE = 1 << 9
"""The flag of a class that is defined in Python. Source: Py_TPFLAGS_HEAPTYPE"""


def plain_object(item: Any) -> dict[str, Any] | None:
    """The attributes of an object that is those attributes and nothing else; or None."""
    kind, attributes = type(item), object_attributes(item)
    if torch_api.is_container(item) or _base_type(kind) not in PLAIN or slot_names(kind):
        return None
    return attributes


PLAIN = (object, SimpleNamespace)
"""The attributes of objects that are nothing else"""


def object_attributes(leaf: Any) -> dict[str, Any] | None:
    """The attributes of an object that is a container of tensors, or None for a leaf."""
    if isinstance(leaf, torch.Tensor):
        return tensor_parts(leaf)
    if isinstance(leaf, (*LIVE, type, str, int, float)) or _is_code(leaf):
        return None
    base = _base_type(type(leaf))
    if base is None:
        return None
    attributes = names_in(leaf)
    if base in CONTAINERS:
        content = [item for _, item in own_items(leaf)]
        whole = dict(own_items(leaf)) if issubclass(base, dict) else CONTAINERS[base](content)
        attributes = {ITEMS: whole, **(attributes or {})}
    if attributes is None:
        return None
    if not (_holds_tensors(attributes, depth=4) or attribute(type(leaf), "__dataclass_fields__")):
        return None
    return None if _leads_back(attributes, leaf) else attributes


def _is_code(leaf: Any) -> bool:
    """Whether it is there to be called: all of C, as functions and partials are.

    One of a class with a `__call__` in Python is an object as any other, and may hold a batch.
    """
    return callable(leaf) and not isinstance(type(leaf).__call__, FunctionType)


CONTAINERS: Mapping[type, Callable[[list[Any]], Any]] = MappingProxyType(
    {dict: list, OrderedDict: list, list: list, tuple: tuple}
)
"""Python's own containers that a class of the user's may derive from"""
ITEMS = "<items>"
"""Stands for an attribute that has what such an object contains"""


def _base_type(kind: type) -> type | None:
    """What an object of the class is beside its attributes: nothing, or a container of Python's.

    None of one that is something else: a number, a set, an object of C.
    """
    base = next(base for base in kind.__mro__ if not base.__flags__ & HEAP_TYPE)
    known = base in PLAIN or (base in CONTAINERS and base is not kind)
    return base if known else None


LIVE = (
    nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)
"""Objects that act on live tensors, and not on copies of them"""
NO_CONTAINER = (str, int, float, type, ModuleType, *LIVE, set, frozenset, deque)
"""What is not looked into: a module of Python's, as `self.torch`, leads to all that is loaded"""


def _holds_tensors(attributes: dict[str, Any], depth: int) -> bool:
    """Whether there is a tensor within so many steps by attributes; containers are no step."""
    level, seen = [attributes], dict[int, Any]()
    for left in range(depth, -1, -1):
        below = list[Any]()
        while level:
            item: Any = level.pop()
            if isinstance(item, torch.Tensor):
                return True
            if left and id(item) not in seen and not isinstance(item, NO_CONTAINER):
                seen[id(item)] = item
                inside = (each for _, each in members(item))
                (level if isinstance(item, (dict, list, tuple)) else below).extend(inside)
        level = below
    return False


def _leads_back(attributes: dict[str, Any], to: Any) -> bool:
    """Whether what an object holds has a way back to it that a copy would not have.

    A weak reference, a method of its own, a function that closes over it: of a copy they show the
    original.
    """
    found = walk_heap([attributes], _inside, depth=BACK)
    return any(end is to for item in found for end in _behind(item))


def _inside(item: Any) -> list[Any]:
    inside = () if isinstance(item, (torch.Tensor, *NO_CONTAINER)) else members(item)
    return [each for _, each in inside]


BACK = 8
"""Steps, by containers and attributes, within which a way back is looked for"""


def _behind(item: Any) -> Iterator[Any]:
    if isinstance(item, ref):
        yield item()
    elif isinstance(item, MethodType):
        yield item.__self__
    elif isinstance(item, FunctionType):
        yield from map(cell_content, item.__closure__ or ())
    elif isinstance(item, partial):
        yield from (item.func, *item.args, *item.keywords.values())
        yield from _behind(item.func)


def rebuild(kind: type, attributes: dict[str, Any]) -> Any:
    """An object of a class with these attributes; its own code does not run."""
    if TENSOR in attributes:
        return as_class(kind, attributes.pop(TENSOR), attributes)
    base: Any = _base_type(kind)
    items = attributes.pop(ITEMS, ())
    new: Any = base.__new__(kind, items) if base is tuple else base.__new__(kind)
    if base is list:
        list.extend(new, items)
    for key in items if base in (dict, OrderedDict) else ():
        base.__setitem__(new, key, items[key])
    for name, item in attributes.items():
        object.__setattr__(new, name, item)
    return new

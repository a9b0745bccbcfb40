"""What a piece is called, and which callable a region is."""

import types
from collections.abc import Callable
from typing import Any

from torch import nn

from foretrace.python_state.effects.module_owners import owners_of


def has_forward(module: nn.Module) -> bool:
    """Whether it can be called; a ModuleList cannot."""
    return type(module).forward is not nn.Module.forward


def region_of(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The piece that a call of a region is: a callable, its key, and what it is called with.

    A method is one for each object.
    """
    name = getattr(function, "__name__", "")
    for base in type(args[0]).__mro__ if args else ():
        found = vars(base).get(name)
        if found is not None and getattr(found, "__wrapped__", None) is function:
            bound = types.MethodType(function, args[0])
            return bound, (id(function), id(args[0])), args[1:]
    return function, id(function), args


def name_of(fn: Any) -> str:
    """How the user calls a program."""
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def paths_of(fn: Any) -> dict[int, str]:
    """The path of each module of a program."""
    found = dict[int, str]()
    for prefix, owner in owners_of(fn).items():
        for path, module in owner.named_modules(prefix=prefix):
            found.setdefault(id(module), path)
    return found


def path_of(fn: Any, paths: dict[int, str]) -> str:
    """The path of a piece; of the program itself its name."""
    return paths.get(id(fn)) or name_of(fn)

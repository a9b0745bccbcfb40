"""The modules and tensors that a program reaches by name."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx, nn

from foretrace.ir.pydata.members import cell_content
from foretrace.python_state.code.bytecode import cells_of


def owners_of(fn: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules that a callable reaches by name, by the prefix of their parameters' names."""
    if isinstance(fn, nn.Module):
        return {"": fn}
    if isinstance(fn, fx.Interpreter):
        return {"": fn.module}
    if isinstance(fn, functools.partial):
        return owners_of(fn.func)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, nn.Module):
        return {"": owner}
    return {name: found for name, found in _reachable(fn) if isinstance(found, nn.Module)}


def names_of_tensors(fn: Callable[..., Any]) -> dict[int, str]:
    """Names under which the closure and globals of a function, or method, hold tensors."""
    names = dict[int, str]()
    for name, found in _reachable(getattr(fn, "__func__", fn)):
        if isinstance(found, torch.Tensor):
            names[id(found)] = name
        elif isinstance(found, nn.Module):
            own = (*found.named_parameters(), *found.named_buffers())
            names |= {id(each): f"{name}.{path}" for path, each in own}
    return names


def _reachable(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a function closes over, and the globals with the names that its code has.

    `inspect.getclosurevars` disassembles the code from Python 3.13 on, and gives them in any order.
    """
    if not inspect.isfunction(fn):
        return []
    space, cells = fn.__globals__, cells_of(fn)
    closed = ((name, cell_content(cell)) for name, cell in cells.items())
    return [*closed, *((name, space[name]) for name in fn.__code__.co_names if name in space)]


def with_paths(owners: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, by the first of its dotted paths."""
    found = set[int]()
    for prefix, owner in owners.items():
        for path, module in owner.named_modules():
            if id(module) not in found:
                found.add(id(module))
                yield f"{prefix}.{path}" if prefix and path else prefix or path, module

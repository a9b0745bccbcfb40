"""Modes that see torch functions, and hooks for the calls of all modules: read by identity."""

from collections.abc import Callable
from typing import Any

import torch

# The stack of modes that see torch functions; nothing public reads it.
from torch import _C

# Where the tables of hooks stand, all by names that begin with `_global_` (2.13 to 2.15).
from torch.nn.modules import module as nn_module

# The hooks for the calls of all modules, and which of these take keyword arguments, or are called
# where `forward` raises; torch 2.13 to 2.15 keep them in these tables for good.
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_hooks_always_called,
    _global_forward_hooks_with_kwargs,
    _global_forward_pre_hooks,
)
from torch.optim import optimizer

# The mode of `with torch.device(...)` and of `torch.set_default_device`.
from torch.utils._device import DeviceContext

from foretrace.torch_api.dispatch import dispatch_modes, function_modes
from foretrace.torch_api.tensors import saving_watched

FOR_ALL_MODULES = (
    _global_forward_hooks,
    _global_forward_pre_hooks,
    _global_backward_hooks,
    _global_backward_pre_hooks,
)


HOOK_TABLES: tuple[dict[int, Any], ...] = tuple(
    table
    for file in (nn_module, optimizer)
    for name, table in vars(file).items()
    if name.startswith("_global_") and isinstance(table, dict)
)
"""All tables of hooks for any module or optimizer: of calls, registrations, steps"""
OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a module has the hooks for its own calls (torch/nn/modules/module.py, 2.13 to 2.15)"""


def modes_of_functions() -> tuple[Any, ...]:
    """The modes from the outermost: of a context of `torch.device` its device, else the mode."""
    stack = map(_C._get_function_stack_at, range(function_modes()))
    return tuple([mode.device if type(mode) is DeviceContext else mode for mode in stack])


def foreign_function_modes() -> bool:
    """Whether a mode other than a context of `torch.device` sees torch functions."""
    if not function_modes():
        return False
    return not all(isinstance(mode, torch.device) for mode in modes_of_functions())


def watched() -> bool:
    """Whether a mode, hooks on saved tensors or torch.jit.trace see what a program itself does."""
    seen = bool(dispatch_modes()) or saving_watched() or foreign_function_modes()
    return seen or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def hooks_of_all_modules() -> tuple[Any, ...]:
    """The hooks, in the order in which they are called, each with how it is called."""
    how = _global_forward_hooks_with_kwargs, _global_forward_hooks_always_called
    return tuple(
        [
            tuple([(hook, *(key in table for table in how)) for key, hook in hooks.items()])
            for hooks in FOR_ALL_MODULES
        ]
    )


class HookTables:
    """What is in all such tables, by identity."""

    def __init__(self) -> None:
        self.items = [[*table.items()] for table in HOOK_TABLES]

    def __eq__(self, other: object) -> bool:
        both = zip(self.items, getattr(other, "items", ()), strict=False)
        return all(
            len(mine) == len(its)
            and all(a == b and x is y for (a, x), (b, y) in zip(mine, its, strict=True))
            for mine, its in both
        )

    __hash__ = None  # type: ignore[assignment]

    def put_back(self) -> None:
        """Let the tables be so again."""
        for table, items in zip(HOOK_TABLES, self.items, strict=True):
            table.clear()
            table.update(items)


def modules_hooked() -> bool:
    """Whether there is any such hook."""
    return any(FOR_ALL_MODULES)


class OfGraph(torch.nn.Module):
    """A module of a graph: no hook for all modules sees it, as the program has no such module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; one that has hooks of its own as torch calls any module."""
        if any(FOR_ALL_MODULES) and not any(map(vars(self).get, OWN_HOOKS)):
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)


def unseen(found: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiler returned; of a graph module of torch's, a function that calls it so, too."""
    if not isinstance(found, torch.fx.GraphModule) or isinstance(found, OfGraph):
        return found

    def run(*inputs: Any) -> Any:
        return found.forward(*inputs) if any(FOR_ALL_MODULES) else found(*inputs)

    return run

"""Which program runs as Python in this thread, and so what a call of a module comes to.

While it does, the modules that it may call have under `torch_api.CALLED_BY` what asks here first.
Nothing else is touched, and all is taken away when it returns. To other threads, to modes that see
operators, and inside a checkpoint, which saves what its second run makes again, a module is itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from torch import nn

from foretrace import torch_api


class Hole(Protocol):
    """What runs as Python."""

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What a module gives that its code has called."""

    def region(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a region gives that its code has called."""


class Here(threading.local):
    """What this thread runs."""

    hole: Hole | None = None
    """the innermost module or function that runs as Python"""
    counting: Hole | None = None
    """who is told of calls while a mode counts their operators"""


HERE = Here()


def watched() -> bool:
    """Whether somebody sees operators, or what autograd saves: then the program itself runs."""
    return bool(
        torch_api.dispatch_modes() or torch_api.functorch_active() or torch_api.saving_watched()
    )


def hole_here() -> Hole | None:
    """Who answers calls of modules and regions now; None: they answer themselves."""
    hole = HERE.hole
    if hole is None or not watched():
        return hole
    return HERE.counting


def caller(module: nn.Module) -> Callable[..., Any]:
    """What stands under `torch_api.CALLED_BY` of a module."""
    plain = torch_api.plain_call(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        hole = hole_here()
        return plain(*args, **kwargs) if hole is None else hole.called(module, args, kwargs)

    return call


Put = list[tuple[dict[str, Any], Callable[..., Any]]]
"""Attributes of modules, and what is to stand there"""


@contextmanager
def seeing_all(hole: Hole) -> Iterator[None]:
    """Inside, every module that this thread calls in `hole` itself comes to it, known or not."""
    original: Any = nn.Module.__call__

    @wraps(original)
    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        ours = HERE.hole is hole and torch_api.CALLED_BY not in vars(module)
        if not ours or watched():
            return original(module, *args, **kwargs)
        return hole.called(module, args, kwargs)

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]


def run(hole: Hole, put: Put, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a hole's own code; what is `put` stands there meanwhile."""
    here, key = HERE, torch_api.CALLED_BY
    before, here.hole = here.hole, hole
    if not put:
        try:
            return plain(*args, **kwargs)
        finally:
            here.hole = before
    done = []
    for space, call in put:
        if key not in space:  # nor what the user has compiled, or an outer run has put there
            space[key] = call
            done.append(space)
    try:
        return plain(*args, **kwargs)
    finally:
        here.hole = before
        for space in done:
            space.pop(key, None)

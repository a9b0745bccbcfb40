"""Redirects calls of modules while a program around them runs as Python.

While it does, the modules that it may call have under `torch_api.CALLED_BY` what asks here first.
Nothing else is touched, and all is taken away when it returns; a module that has got a copy of the
`__dict__` of one loses it when it is called. To other threads, to modes that see operators, and
inside a checkpoint, which saves what its second run makes again, a module is itself.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from sys import _getframe as frame_of
from typing import Any, Protocol

from torch import fx, nn

from foretrace import torch_api
from foretrace.runtime.guards.abandoned import GUARD_FAILED


class Hole(Protocol):
    """A program or piece that runs as Python."""

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The result of a module that its code calls."""

    def region(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of a region that its code calls."""


class Here(threading.local):
    """The thread's innermost code that runs as Python."""

    hole: Hole | None = None
    """the innermost module or function that runs as Python"""
    counting: Hole | None = None
    """who is notified of calls while a mode counts their operators"""


HERE = Here()


def watched() -> bool:
    """Whether something sees operators, functions or saved tensors: then all runs itself."""
    seen = torch_api.watched() or torch_api.transformed()
    return bool(seen) or torch_api.saving_hooks(True) is not None


def hole_here() -> Hole | None:
    """What handles calls of modules and regions now; None: they run themselves."""
    hole = HERE.hole
    if hole is None or torch_api.casts_kept():  # eager casts a parameter once for all its uses
        return None
    return HERE.counting if watched() else hole


def caller(module: nn.Module) -> Callable[..., Any]:
    """The `torch_api.CALLED_BY` of a module: it asks the thread's hole first."""
    called = torch_api.module_called

    def call(*args: Any, **kwargs: Any) -> Any:
        if (copy := called(frame_of(1), module)) is not module:
            return _of_copy(copy, args, kwargs)
        return _slowly(module, args, kwargs)

    return call


def _of_copy(copy: nn.Module, args: Any, kwargs: Any) -> Any:
    """A call of a module whose `__dict__` a program has copied from one that stands here."""
    vars(copy).pop(torch_api.CALLED_BY, None)
    return copy(*args, **kwargs)


def _slowly(module: nn.Module, args: Any, kwargs: Any) -> Any:
    hole = hole_here()
    if hole is None:
        return torch_api.plain_call(module)(*args, **kwargs)
    return hole.called(module, args, kwargs)


def answered_by(
    module: nn.Module, first: Callable[[], Callable[[Any, Any], Any]]
) -> Callable[..., Any]:
    """The same for a piece that has captures: the last used is tried at once.

    Args:
        module: the piece.
        first: gives what runs that capture, or returns GUARD_FAILED.
    """
    space, here, key, miss = vars(module), HERE, torch_api.CALLED_BY, GUARD_FAILED
    modes, levels, hooks = (torch_api.dispatch_modes, torch_api.transformed, torch_api.saving_hooks)
    called = torch_api.module_called

    def call(*args: Any, **kwargs: Any) -> Any:
        if (copy := called(frame_of(1), module)) is not module:
            return _of_copy(copy, args, kwargs)
        if here.hole is None or modes() or hooks(True) or levels():
            return _slowly(module, args, kwargs)
        own = space.pop(key, None)  # the guards count attributes
        try:
            result = first()(args, kwargs)
        finally:
            if own is not None:
                space[key] = own
        return _slowly(module, args, kwargs) if result is miss else result

    return call


def run_by(module: nn.Module, passed: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """The same for a piece that has a hole of its own.

    Args:
        module: the piece.
        passed: runs its code as Python, or returns GUARD_FAILED.
    """
    space, here, key, miss = vars(module), HERE, torch_api.CALLED_BY, GUARD_FAILED
    modes, levels, hooks, casts = (
        torch_api.dispatch_modes,
        torch_api.transformed,
        torch_api.saving_hooks,
        torch_api.casts_kept,
    )
    called = torch_api.module_called

    def call(*args: Any, **kwargs: Any) -> Any:
        if (copy := called(frame_of(1), module)) is not module:
            return _of_copy(copy, args, kwargs)
        if here.hole is None or modes() or hooks(True) or levels() or casts():
            return _slowly(module, args, kwargs)
        own = space.pop(key, None)
        try:
            result = passed(args, kwargs)
        finally:
            if own is not None:
                space[key] = own
        return _slowly(module, args, kwargs) if result is miss else result

    return call


class alone:  # noqa: N801 - used as a context manager; one of contextlib takes 1 us more
    """Inside, a piece finds itself as it is outside of a hole: its guards count attributes.

    Args:
        module: what the piece is; None: a region.
        below: whether all modules below it are looked at, too, as a capture does. They stay as
            they are outside: the piece itself is what is called from now on.
    """

    __slots__ = ("call", "hole", "space")

    def __init__(self, module: nn.Module | None, *, below: bool) -> None:
        self.hole = HERE.hole
        self.space: dict[str, Any] = {} if module is None else vars(module)
        self.call = self.space.pop(torch_api.CALLED_BY, None)
        for each in module.modules() if below and module is not None else ():
            vars(each).pop(torch_api.CALLED_BY, None)

    def __enter__(self) -> None:
        HERE.hole = None

    def __exit__(self, *error: object) -> None:
        HERE.hole = self.hole
        if self.call is not None:
            self.space[torch_api.CALLED_BY] = self.call


Redirects = list[tuple[dict[str, Any], Callable[..., Any]]]
"""Attributes of modules, and their temporary values"""


@contextmanager
def seeing_all(hole: Hole) -> Iterator[None]:
    """Inside, every module that this thread calls in `hole` itself comes to it, known or not."""

    def over(original: Any) -> Callable[..., Any]:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            ours = HERE.hole is hole and torch_api.CALLED_BY not in vars(module)
            if not ours or watched() or isinstance(module, fx.GraphModule):  # a backend's
                return original(module, *args, **kwargs)
            return hole.called(module, args, kwargs)

        return call

    put = torch_api.put_module_call(over)
    try:
        yield
    finally:
        torch_api.take_module_call(put)


def run(hole: Hole, put: Redirects, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a hole's own code; what is `put` stands there meanwhile."""
    here, key = HERE, torch_api.CALLED_BY
    before, here.hole = here.hole, hole
    if not put:
        try:
            return plain(*args, **kwargs)
        finally:
            here.hole = before
    done = []
    for each in put:
        if key not in each[0]:  # nor what the user has compiled, or an outer run has put there
            each[0][key] = each[1]
            done.append(each)
    try:
        return plain(*args, **kwargs)
    finally:
        here.hole = before
        if before is None:  # what another thread's run put there may have been put back by this one
            for space, _ in put:
                if getattr(space.get(key), "__module__", None) == __name__:
                    space.pop(key, None)
        else:
            for space, call in done:
                if space.get(key) is call:
                    space.pop(key, None)

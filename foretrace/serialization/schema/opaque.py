"""Stand-ins for what a file stores only by name: source lines, Functions, hooks, other objects.

Explanations show them as before. A call of one is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import nn

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.tracer.recorder.autograd_hooks import RETAIN, HookCall
from foretrace.tracer.recorder.function_target import Context, FunctionCall


@dataclass(frozen=True, slots=True)
class StoredFrame(Frame):
    """A line of a program whose source file need not exist."""

    code: str
    """the line when the program was saved"""

    @property
    def text(self) -> str:
        """The source line, stripped."""
        return self.code


class OpaqueContext(Context):
    """The `ctx` of a stored call. Its identity distinguishes calls."""

    def __init__(self, zeros: bool) -> None:
        none: Any = None
        super().__init__((), none)
        self.materialize_grads = zeros

    def unpacked_by(self, backward: Callable[..., Any], gradients: tuple[Any, ...]) -> NoReturn:
        """Refuse the backward."""
        raise python("the backward of an autograd.Function")


class Opaque:
    """An argument of a stored call that is an object of the program."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class OpaqueFunction(FunctionCall):
    """The call of an autograd.Function that the file stores by name."""

    def __init__(
        self, name: str, context: OpaqueContext, followed: bool, copied: tuple[int, ...]
    ) -> None:
        function: Any = type(name, (torch.autograd.Function,), {})
        super().__init__(function, context, followed=followed, copied=copied)

    def apply(self, *args: Any) -> NoReturn:
        """Refuse the call."""
        raise python(str(self))

    def as_module(self) -> NoReturn:
        """Refuse the call."""
        raise python(str(self))


class OwnHook:
    """A hook's function, by name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> NoReturn:
        """Refuse the call."""
        raise python(self.name)


class OpaqueHook(HookCall):
    """The registration of a hook that the file stores by name."""

    def __init__(self, way: str, name: str, removed: bool, holds: bool) -> None:
        self.way, self._name, self._removed, self.holds = way, name, removed, holds
        self.hook = None if way == RETAIN else OwnHook(name)
        self.__name__ = way.rpartition(".")[2]

    @property
    def removed(self) -> bool:
        """Whether the program has removed it."""
        return self._removed

    @property
    def removable(self) -> bool:
        """No handle is left to remove it."""
        return False

    @property
    def name(self) -> str:
        """The name of the hook's function."""
        return self._name

    def __call__(self, tensor: Any) -> None:
        """Register `retain_grad`; refuse a function."""
        if self.way != RETAIN:
            raise python(self._name)
        super().__call__(tensor)

    def as_module(self) -> nn.Module:
        """The registration as a module; refuse a function."""
        if self.way != RETAIN:
            raise python(self._name)
        return super().as_module()


def python(name: str) -> Refusal:
    """The refusal of Python that a file cannot store."""
    return Refusal(
        f"{name} is Python of the program's own, and no file holds that",
        kind="not saved",
        do="call a stored cut that does not call it, as the joint cut, or the program itself",
    )


def by_the_graph(sizes: Any, tensors: Any) -> Callable[[ValueGuard], bool]:
    """Check no value before the call: the graph asserts each."""
    return lambda answered: True


class Gone:
    """Stands for a predicate, a policy or a table that was a function of the user."""

    def __call__(self, *args: Any) -> NoReturn:
        """Refuse the call."""
        raise Refusal(
            "the cut was made with a function (keep=, open=, policy= or decompositions=), which no"
            " file has, and cannot be built again for tangents of other strides, or for its passes",
            kind="not saved",
            do="name operators instead of a function, and save it again",
        )


GONE: Final = Gone()

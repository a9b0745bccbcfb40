"""What a file has only in words: lines of source, and Python of the program's that it cannot hold.

Explanations tell of it as before. Nothing can call it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import nn

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.call_requirements import ValueGuard
from foretrace.ir.program.recording import Recording
from foretrace.tracer.recorder.autograd_hooks import RETAIN, HookCall
from foretrace.tracer.recorder.function_target import Context, FunctionCall


@dataclass(frozen=True, slots=True)
class ToldFrame(Frame):
    """A line of a program whose source need not be there."""

    told: str
    """the code on it when the program was saved"""

    @property
    def text(self) -> str:
        """The source line, stripped."""
        return self.told


def opaque_frame(file: str, line: int, function: str, told: str) -> ToldFrame:
    """A line, by its place."""
    return ToldFrame(file, line, function, told)


class OpaqueContext(Context):
    """In the place of the `ctx` of a call; it tells one call from another."""

    def __init__(self, zeros: bool) -> None:
        none: Any = None
        super().__init__((), none)
        self.materialize_grads = zeros

    def unpacked_by(self, backward: Callable[..., Any], gradients: tuple[Any, ...]) -> NoReturn:
        """Refuse the backward.

        Raises:
            Refusal: always.
        """
        raise python("the backward of an autograd.Function")


class Opaque:
    """An argument of such a call that is an object of the program's own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


class OpaqueFunction(FunctionCall):
    """The call of an autograd.Function of which the file has the name."""

    def __init__(
        self, name: str, context: OpaqueContext, followed: bool, copied: tuple[int, ...]
    ) -> None:
        function: Any = type(name, (torch.autograd.Function,), {})
        super().__init__(function, context, followed=followed, copied=copied)

    def apply(self, *args: Any) -> NoReturn:
        """Refuse the call.

        Raises:
            Refusal: always.
        """
        raise python(str(self))

    def as_module(self) -> NoReturn:
        """Refuse the call.

        Raises:
            Refusal: always.
        """
        raise python(str(self))


class OwnHook:
    """In the place of the program's function."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> NoReturn:
        """Refuse.

        Raises:
            Refusal: always.
        """
        raise python(self.name)


class OpaqueHook(HookCall):
    """The registration of a hook of which the file has the name."""

    def __init__(self, way: str, name: str, removed: bool, holds: bool) -> None:
        self.way, self._called, self._removed, self.holds = way, name, removed, holds
        self.hook = None if way == RETAIN else OwnHook(name)
        self.__name__ = way.rpartition(".")[2]

    @property
    def removed(self) -> bool:
        """Whether the program has taken it away again."""
        return self._removed

    @property
    def held(self) -> bool:
        """Nobody can remove it any more."""
        return False

    @property
    def name(self) -> str:
        """What the hook was called."""
        return self._called

    def __call__(self, tensor: Any) -> None:
        """Let the tensor keep its gradient; refuse to register a function.

        Raises:
            Refusal: it is one.
        """
        if self.way != RETAIN:
            raise python(self._called)
        super().__call__(tensor)

    def as_module(self) -> nn.Module:
        """The same as a module.

        Raises:
            Refusal: as for the call.
        """
        if self.way != RETAIN:
            raise python(self._called)
        return super().as_module()


WORDS: Final = "Python of the program's own, and no file holds that"


def python(name: str) -> Refusal:
    """The refusal of Python that only the program has."""
    return Refusal(
        f"{name} is {WORDS}",
        kind="not saved",
        do="call a stored cut that does not call it, as the joint cut, or the program itself",
    )


def asserted(recorded: Recording, error: BaseException, trace: object) -> Refusal | None:
    """The refusal of a call for which a graph has found another answer than the capture did."""
    if isinstance(error, Refusal):
        return None
    found = next((each for each in recorded.asked if each.text in str(error)), None)
    if found is None:
        return None
    return Refusal(
        f"guard broken: {found.broken}",
        kind="guard broken",
        at=found.frame,
        do="capture again with inputs like these",
    )


def by_the_graph(sizes: Any, tensors: Any) -> Callable[[ValueGuard], bool]:
    """Asks no question before a graph runs: the graph asserts each answer."""
    return lambda answered: True


class Gone:
    """In the place of a predicate, a policy or a table that was a function of the user's."""

    def __call__(self, *args: Any) -> NoReturn:
        """Refuse.

        Raises:
            Refusal: always.
        """
        raise Refusal(
            "the cut was made with a function (keep=, open=, policy= or decompositions=), and has"
            " to be made anew for this call, whose sizes or tangents lie otherwise",
            kind="not saved",
            do="name operators instead of a function, and save it again",
        )


GONE: Final = Gone()

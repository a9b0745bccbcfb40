"""What a file has only in words: lines of source, and Python of the program's that it cannot hold.

Explanations tell of it as before. Nothing can call it.
"""

from dataclasses import dataclass
from typing import Any, Final, NoReturn

from foretrace.errors import Frame, Refusal
from foretrace.trace.functions import Context, FunctionCall
from foretrace.trace.hooks import HookCall


@dataclass(frozen=True, slots=True)
class ToldFrame(Frame):
    """A line of a program whose source need not be there."""

    told: str
    """the code on it when the program was saved"""

    @property
    def text(self) -> str:
        """The source line, stripped."""
        return self.told


def told_frame(file: str, line: int, function: str, told: str) -> ToldFrame:
    """A line, by its place."""
    return ToldFrame(file, line, function, told)


class ToldContext(Context):
    """In the place of the `ctx` of a call; it tells one call from another."""

    def __init__(self) -> None:
        """Nothing is saved in it."""


class ToldFunction(FunctionCall):
    """The call of an autograd.Function of which the file has the name."""

    def __init__(
        self, name: str, context: ToldContext, followed: bool, copied: tuple[int, ...]
    ) -> None:
        function: Any = type(name, (), {})
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


class ToldHook(HookCall):
    """The registration of a hook of which the file has the name."""

    def __init__(self, way: str, name: str, removed: bool) -> None:
        self.way, self.hook, self._called, self._removed = way, None, name, removed
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
        """Refuse to register it.

        Raises:
            Refusal: always.
        """
        raise python(self._called)

    def as_module(self) -> NoReturn:
        """Refuse the call.

        Raises:
            Refusal: always.
        """
        raise python(self._called)


WORDS: Final = "Python of the program's own, and no file holds that"


def python(name: str) -> Refusal:
    """The refusal of Python that only the program has."""
    return Refusal(
        f"{name} is {WORDS}", kind="not saved",
        do="call a stored cut that does not call it, as the joint cut, or the program itself",
    )  # fmt: skip


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
            kind="not saved", do="name operators instead of a function, and save it again",
        )  # fmt: skip

    def get(self, *args: Any) -> NoReturn:
        """As a table of decompositions: likewise."""
        self(*args)


GONE: Final = Gone()

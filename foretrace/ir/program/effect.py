"""What each kind of effect of a call has to say of itself; the kinds are in `effects.py`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from foretrace.ir.symbols.substitution import Numbers, Size

Phase: TypeAlias = Literal["memory", "state", "result"]
"""When a call does it: before it writes back, after all views are taken, or on what it returns"""


@dataclass(slots=True)
class Call:
    """A call whose graph has run."""

    inputs: Sequence[Any]
    """of the graph"""
    sizes: Numbers
    arguments: Any
    """positional ones and keywords, as the caller gave them"""
    outputs: list[Any]
    result: Any = None
    """what it returns"""
    built: Sequence[Any] = ()
    """what it has left in each place of Python's state"""
    found: Sequence[Any] = ()
    """the objects of Python's state that it has found, before it left anything"""

    def size(self, size: Size) -> int:
        """A size of this call."""
        return size if isinstance(size, int) else int(size.xreplace(self.sizes))


class Code(Protocol):
    """The end of a generated call, whose parameters are `args` and `kwargs`."""

    inputs: Sequence[str]
    """names of the graph's inputs"""
    outputs: Sequence[str]
    """expressions of its outputs"""
    result: str
    """an expression of what it returns"""
    built: str
    """an expression of what it has left in each place of Python's state"""
    found: str
    """an expression of the objects of Python's state that it has found"""

    def name(self, wish: str) -> str:
        """A new name for what a line assigns."""

    def bind(self, item: object, wish: str) -> str:
        """A name for an object."""

    def size(self, size: Size) -> str:
        """A size as an expression."""


class Effect(ABC):
    """A kind of effect; each method takes all effects of the kind that a program has, in order."""

    phase: ClassVar[Phase] = "state"

    @property
    def inputs(self) -> tuple[int, ...]:
        """The inputs of the graph that it is on, by index."""
        return ()

    @property
    def counted(self) -> tuple[int, ...]:
        """The inputs whose version counters count it before the graph runs."""
        return ()

    @classmethod
    @abstractmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Do them in a call."""

    @classmethod
    @abstractmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Statements that do them; one on what is returned replaces `code.result`."""

    @classmethod
    @abstractmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """The effects of a record of both runs.

        Args:
            ones: those of the first run.
            others: those of the second.
            places: where the inputs of the second run are among those of both.

        Raises:
            ProgramsDiffer: no graph chooses between them.
        """

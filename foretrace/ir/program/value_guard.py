"""Questions about values whose answers a program relied on, as guards."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch

from foretrace.errors import Frame
from foretrace.ir.symbols.substitution import Numbers

WRITTEN = str.maketrans({'"': "'", "\\": "/", "\n": " "})
"""What Inductor puts into C++ as it stands"""


@dataclass(frozen=True, slots=True, eq=False)
class ValueGuard:
    """A question about values whose answer the program relied on, as a guard."""

    asked: str
    """the name of the op that was asked for it"""
    inputs: tuple[str, ...]
    """names of the inputs whose values it is about; none: it is about what sizes make"""
    random: bool
    """whether it is about random numbers, too"""
    answer: object
    symbols: frozenset[sympy.Symbol]
    frame: Frame | None
    again: "GuardEvaluator"
    """with these sizes, and these inputs of the graph: whether an answer of the run is the same"""
    asserted: bool
    """whether an op of the record asserts it"""
    number: int
    """how many questions were asked before"""

    @property
    def many(self) -> bool:
        """Whether there are more answers than two."""
        return not isinstance(self.answer, bool)

    @property
    def about(self) -> str:
        """What was asked of what."""
        names = ", ".join([*self.inputs, *["random numbers"] * self.random])
        of = f"what follows from {names}" if names else "a constant made from these sizes"
        return f"{self.asked} of {of}"

    @property
    def condition(self) -> str:
        """What the program relied on."""
        return f"{self.about} is {self.answer}"

    @property
    def broken(self) -> str:
        """The message of a call for which it does not hold."""
        now = not self.answer if isinstance(self.answer, bool) else "another"
        return f"{self.about} is {now} now, and was {self.answer} in the capture"

    @property
    def text(self) -> str:
        """What its assertion says; no other has the same."""
        text = f"guard broken: {self.broken}; question {self.number + 1}, at {self.frame}"
        return text.translate(WRITTEN)

    def holds(self, sizes: Numbers, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the answer is the same with these sizes, and these inputs of the graph."""
        return self.again(sizes, tensors)(self)

    def __str__(self) -> str:
        return f"{self.condition}  at {self.frame}"


GuardEvaluator: TypeAlias = Callable[
    [Numbers, Sequence[torch.Tensor]], Callable[[ValueGuard], bool]
]
"""Answers the questions of another call, from its sizes and the inputs of the graph."""


@dataclass(frozen=True, slots=True, eq=False)
class SymbolGuard(ValueGuard):
    """A condition on numbers that data decides, which the graph asks where it computes them."""

    of: sympy.Basic
    """the condition"""
    then: str
    """what they were in the capture"""

    @property
    def many(self) -> bool:
        """Whether it asks for a number: an equation does."""
        return isinstance(self.of, sympy.Eq)

    @property
    def about(self) -> str:
        """The condition."""
        return self.asked

    @property
    def condition(self) -> str:
        """What the program relied on."""
        return self.asked

    @property
    def broken(self) -> str:
        """The message of a call for which it does not hold; its first words are torch.export's."""
        then = f"which was so in the capture ({self.then})"
        return f"Runtime assertion failed for expression {self.asked}, {then}"

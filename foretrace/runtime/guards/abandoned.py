"""A call that a generated function abandons, as if it had not begun.

A question has another answer: another capture answers (decision 022). The graph raises: the program
may have an `except` that takes the error, so that Python answers (decision 081).
"""

import threading
from collections.abc import Iterable
from typing import Final

import torch

from foretrace.ir.program.value_guard import ValueGuard


class _Miss:
    def __repr__(self) -> str:
        return "MISS"


GUARD_FAILED: Final = _Miss()
"""What a function gives that was abandoned"""
GeneratorStates = Iterable[tuple[torch.Generator, torch.Generator]]


class GraphRaised(Exception):
    """An operator of a graph raised, and the call was abandoned; it leaves no callable.

    Args:
        error: what it raised.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Abandoned(threading.local):
    """Why this thread's last call was abandoned, and how it is undone."""

    asked: ValueGuard | None = None
    """the question that has another answer"""
    error: Exception | None = None
    """what the graph raised"""

    def __call__(self, answered: ValueGuard, states: GeneratorStates = ()) -> _Miss:
        """What the body returns where a question has another answer.

        `states` are generators, and copies of them from before it began.
        """
        put_back(states)
        self.asked = answered
        return GUARD_FAILED

    def raised(self, error: Exception, states: GeneratorStates = ()) -> _Miss:
        """What it returns where the graph raises."""
        put_back(states)
        self.error = error
        return GUARD_FAILED

    def taken(self) -> ValueGuard | None:
        """The question; returned once.

        Raises:
            GraphRaised: it was no question; raised once.
        """
        asked, error, self.asked, self.error = self.asked, self.error, None, None
        if error is not None:
            raise GraphRaised(error)
        return asked


def put_back(states: GeneratorStates) -> None:
    """Give generators the states that they had."""
    for generator, state in states:
        generator.set_state(state.get_state())

"""The captures of a program after the first: why each was taken, and when there are too many."""

import warnings
from dataclasses import dataclass
from typing import Any

from foretrace.errors import Frame, Printed, Refusal, line_of
from foretrace.runtime.guards.broken import Broken

MANY = 8
"""Recaptures after which a warning says that there are many; torch.compile stops at 8."""
MOST = 64
"""Captures that are kept; the least recently used is dropped. So many for answers alone."""


@dataclass(frozen=True, slots=True, repr=False)
class Recapture(Printed):
    """One more capture of a program, and why the earlier ones could not answer."""

    reason: str
    """the guard that failed, in words, of the capture that came nearest"""
    at: Frame | None
    """the user's line that the guard follows from, if there is one"""
    others: tuple[str, ...]
    """the same for all other captures"""
    seconds: float

    def __str__(self) -> str:
        return f"{self.reason}\n  at    {self.at}" if self.at is not None else self.reason


class Recaptures(list[Recapture]):
    """Every capture of a program after the first, in the order in which they were taken.

    Args:
        fn: the program.
    """

    def __init__(self, fn: Any) -> None:
        super().__init__()
        self._name: str = getattr(fn, "__qualname__", type(fn).__name__)
        self._answers = 0
        """captures again because of an answer"""

    def note(self, broken: list[Broken], seconds: float) -> None:
        """Add one, and warn where there are many.

        Args:
            broken: the guards that failed, of the capture that came nearest first.
            seconds: how long it took.
        """
        first, *others = broken
        failed = tuple(each.reason for each in others)
        self.append(Recapture(first.reason, line_of(first.at), failed, seconds))
        if len(self) == MANY:
            warnings.warn(
                f"{self._name} was captured again {MANY} times, last because {first.reason};"
                " .recaptures has all reasons",
                stacklevel=5,
            )

    def check_answers(self, broken: list[Broken]) -> None:
        """Refuse one more capture for answers alone, where there are many.

        Raises:
            Refusal: there are.
        """
        if not broken or broken[0].asked is None:
            return
        self._answers += 1
        if self._answers > MOST:
            raise Refusal(
                f"captured again {MOST} times because an answer was another, and now once more:"
                f" {broken[0].reason}",
                kind="changing answers",
                at=broken[0].at,
                do=(
                    "compute both branches, and choose with torch.where",
                    "or ask outside of the captured program, and pass the answer as an argument",
                ),
            )

"""The first guard that does not hold, in words: the list of guards as a function that gives it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.lowering.emit.python_source import INDENT
from foretrace.runtime.guards.guard import Check, Of, check_lines

GONE = "except (KeyError, AttributeError, ValueError, IndexError, ZeroDivisionError)"
"""Errors of reading a name that is no longer bound, or of a question without an answer"""


@dataclass(frozen=True, slots=True)
class Broken:
    """A guard that failed: its reason, and the user's line that led to it, if there is one."""

    reason: str
    at: Frame | LazyFrame | None
    passed: int = 0
    """how many guards passed before it"""
    do: str = ""
    asked: ValueGuard | None = None
    """the question of the program's whose answer is another"""
    of: Of = "call"
    """what it was about"""


def reporting_lines(
    checks: Sequence[Check], space: dict[str, Any], result: str = "None"
) -> Iterator[str]:
    """The checks as lines that return a Broken where one fails, else the result."""
    space["Broken"] = Broken

    def failure(number: int, check: Check) -> str:
        space[f"at{number}"] = check.at
        space[f"asked{number}"], at = check.asked, check.found or f"at{number}"
        rest = f"{check.do!r}, asked{number}, {check.of!r}"
        return f"return Broken({check.reason}, {at}, {number}, {rest})"

    yield "try:"
    yield from (INDENT + line for line in check_lines(checks, failure))
    yield f"{INDENT}pass"
    yield f"{GONE} as gone_:"  # a name that no source binds
    words = "f'what the capture relied on is gone: {gone_}'"
    yield f"{INDENT}return Broken({words}, None, of='state')"
    yield f"return {result}"

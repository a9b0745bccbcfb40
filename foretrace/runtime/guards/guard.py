"""One guard as Python source: a condition for the fast path, and words for when it fails."""

import math
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Frame, LazyFrame
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import BY_VALUE, SINGLE, plain, same, snapshot
from foretrace.ir.source.state_change_lines import attribute
from foretrace.lowering.emit.python_source import Source

SHORT = 4
"""Items of a tuple or list up to which each is compared in the line itself: `same` takes 2 us"""
NAMED = 20
"""The same of a dict, as the defaults of an optimizer are: `same` takes 13 us"""

Of: TypeAlias = Literal["state", "value", "answer", "call"]
"""What a guard is about: what Python objects hold, which the program may change itself; a number
or other plain data that it is called with, or that data decides; yes or no; else what a call is"""


def of_answer(asked: ValueGuard) -> Of:
    """The subject of a guard on an answer."""
    return "value" if asked.many else "answer"


@dataclass(frozen=True, slots=True)
class Check:
    """What a call has to be like: `condition` is true of it, else `reason` says what differs.

    Both are Python expressions; `lines` come before them and bind names that they use.
    """

    condition: str = ""
    reason: str = ""
    lines: tuple[str, ...] = ()
    at: Frame | LazyFrame | None = None
    """the user's line that the guard follows from"""
    do: str = ""
    """what helps, where it is not to capture again"""
    asked: ValueGuard | None = None
    """the question of the program's that it asks again"""
    found: str = ""
    """an expression for the line, where that is found at the call"""
    of: Of = "call"
    """what it is about"""


def message(template: str, *places: str) -> str:
    """An expression that fills the template with what the places give at the call."""
    return f"{template!r}.format({', '.join(places)})"


class Checks:
    """Collects guards as source; the objects that they name are bound in `source`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.checks: list[Check] = []

    def add(
        self,
        condition: str,
        reason: str,
        at: Frame | LazyFrame | None = None,
        do: str = "",
        found: str = "",
    ) -> None:
        """One more check."""
        self.checks.append(Check(condition, reason, at=at, do=do, found=found))

    def line(self, line: str) -> None:
        """A line that binds a name which later checks use."""
        self.checks.append(Check(lines=(line,)))

    def value(
        self, place: str, name: str, item: Any, at: Frame | LazyFrame | None = None, do: str = ""
    ) -> None:
        """Check that the expression `place` still gives `item`."""
        differ = self.source.bind(differs, "differs")
        words = f"{differ}({name!r}, {self.source.bind(Shown(item), 'seen')}, {place})"
        self.add(_condition(self.source, place, item), words, at, do)


def check_lines(checks: Iterable[Check], otherwise: Callable[[int, Check], str]) -> Iterator[str]:
    """The checks as lines; `otherwise` gives the statement for where one fails."""
    for number, check in enumerate(checks):
        yield from check.lines
        if check.condition:
            yield f"if not ({check.condition}): {otherwise(number, check)}"


def _condition(source: Source, place: str, item: Any) -> str:
    kind = type(item)
    if isinstance(item, SINGLE):
        return f"{place} is {source.literal(item, _wish(item))}"
    if kind in BY_VALUE or (kind is float and item and math.isfinite(item)):
        known = source.bind(kind, kind.__name__)
        equal = f"{place} == {source.literal(item)}"
        return f"type({place}) is {known} and {equal}"  # first: what a tensor equals is a tensor
    if (kind is tuple or kind is list) and len(item) <= SHORT:
        known = source.bind(kind, kind.__name__)
        parts = [_condition(source, f"{place}[{index}]", each) for index, each in enumerate(item)]
        if plain(item):
            return " and ".join(
                (f"type({place}) is {known}", f"len({place}) == {len(item)}", *parts)
            )
    if kind is dict and len(item) <= NAMED and plain(item) and all(type(k) is str for k in item):
        parts = [_condition(source, f"{place}[{key!r}]", each) for key, each in item.items()]
        names = source.literal(tuple(item), "names")
        return " and ".join((f"type({place}) is dict", f"tuple({place}) == {names}", *parts))
    if kind is float or kind is complex or plain(item):
        return f"{source.bind(same, 'same')}({place}, {source.bind(snapshot(item), 'seen')})"
    return f"{place} is {source.bind(item, _wish(item))}"


def _wish(item: Any) -> str:
    return str(attribute(item, "__name__", type(item).__name__))


class Shown:
    """A value in words, as it was when the guard was written."""

    def __init__(self, item: Any) -> None:
        self.text = shown(item)

    def __repr__(self) -> str:
        return self.text


def shown(item: Any) -> str:
    """A value in a few words."""
    if isinstance(item, (type, types.FunctionType, types.ModuleType)):
        return f"{type(item).__name__} {item.__name__} at {id(item):#x}"
    if isinstance(item, torch.Tensor):
        with torch_api.no_torch_function():
            return f"a tensor {list(item.shape)} at {id(item):#x}"
    if item is MISSING:
        return repr(item)
    if plain(item):
        with suppress(Exception):  # of a class of the program's, it may raise
            return f"{item!r:.80}"
    return f"{type(item).__name__} at {id(item):#x}"


def differs(name: str, before: object, now: Any) -> str:
    """The condition that a value is another."""
    return f"{name} is {shown(now)}, the capture saw {before!r}"

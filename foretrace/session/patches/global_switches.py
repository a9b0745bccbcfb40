"""Switches of torch's and Python's that a program may leave in another state."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from foretrace import torch_api
from foretrace.errors import Frame, LazyFrame, Refusal
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.access.monitor import AccessMonitor

SWITCHES: Final = tuple(row for row in torch_api.ROWS if row.write is not None)
"""The rows that are put back, from last to first"""


BY_THEMSELVES: Final = frozenset({"autocast", "default dtype", "hooks on saved tensors"})
"""Rows that every call looks at, by other code than the guards of what was read"""
ASKED: Final = tuple(
    row for row in torch_api.ROWS if row.at_call != "around" and row.name not in BY_THEMSELVES
)


def ambient_guards(
    mentioned: AbstractSet[str],
    objects: AbstractSet[int],
    asked: AbstractSet[str],
    *,
    inference: bool,
) -> list[tuple[torch_api.Row, Any]]:
    """The rows that a call has to find as they are now: those of all calls, and what was asked.

    Args:
        mentioned: names that the program's code mentions.
        objects: by id, those that it has read.
        asked: rows on which it depends by what it does.
        inference: whether inference mode is on around it; torch's own is off while it is recorded.
    """
    by = mentioned & torch_api.ASKED_BY
    read = {row for each, row in torch_api.ASKING.items() if each in objects}
    guards = list[tuple[torch_api.Row, Any]]()
    for row in ASKED:
        read_by_name = bool(by) and not by.isdisjoint(row.asked)
        if row.at_call == "always" or row.name in asked or row.name in read or read_by_name:
            guards.append((row, inference if row.name == "inference mode" else row.read()))
    return guards


def _name_of(item: Any) -> str:
    """The name of a function or class, found without a call of the user's classes."""
    if issubclass(type(item), type):
        return str(vars(type)["__name__"].__get__(item))
    return item.__name__ if type(item) in (BuiltinFunctionType, FunctionType) else ""


def may_switch(outside: AccessMonitor, lines: Callable[[], Lines], *, stands: bool) -> bool:
    """Whether the code that ran mentions what switches a row, calls it, or has it by another name.

    Args:
        outside: what it read and called.
        lines: finds lines of it.
        stands: whether a stand-in was in the place of each binding, which sees what is switched by
            torch's own name for it.

    Raises:
        Refusal: it has a binding itself, in whose place nothing can stand.
    """
    if stands and outside.switching:
        name, at = next(iter(outside.switching.items()))
        raise _by_another_name(name, "a name that is not torch's", at)
    found = outside.mentions.switches or bool(outside.switching)
    found |= not outside.mentions.own_attributes.isdisjoint(torch_api.SWITCHED_BY)
    for place in outside.places.values():
        item = place.before
        if _name_of(item) in torch_api.SWITCHED_BY:
            found = True
            if type(item) is BuiltinFunctionType and item in torch_api.STANDS:
                line = lines().calling(place.name)
                raise _by_another_name(item.__name__, f"the name {place.name}", line)
    return found


def _by_another_name(binding: str, name: str, at: Frame | LazyFrame | None) -> Refusal:
    return Refusal(
        f"the program has {binding} of torch's, which switches torch's state, by {name}",
        kind="side effect",
        at=at,
        do=("call it outside of the captured program", f"or call it as torch.{binding}"),
    )


@contextmanager
def unswitched(lines: Callable[[], Lines]) -> Iterator[None]:
    """All switches are as before, whatever happens inside.

    Raises:
        Refusal: the block ends well, and leaves a switch of torch's in another state.
    """
    filters = list(warnings.filters)
    before = [(row, row.read()) for row in SWITCHES]
    try:
        yield
        _check_unswitched(before, lines)
    except BaseException:
        with ExitStack() as stack:  # the others are put back where one cannot be
            for row, state in before:
                stack.callback(_put_back, row, state)
            stack.callback(_put_back_warnings, filters)
        raise
    _put_back_warnings(filters)


def _check_unswitched(
    before: Iterable[tuple[torch_api.Row, Any]], lines: Callable[[], Lines]
) -> None:
    for row, state in before:
        if row.read() != state:
            raise Refusal(
                f"the program leaves torch in another state: {row.name}",
                kind="side effect",
                at=lines().calling(*row.public),
                do="switch it before the captured program is called, or put it back inside",
            )


def _put_back(row: torch_api.Row, before: Any) -> None:
    if row.write is not None and row.read() != before:
        row.write(before)


def _put_back_warnings(before: list[Any]) -> None:
    if list(warnings.filters) != before:
        warnings.filters[:] = before  # type: ignore[index]
        with warnings.catch_warnings():  # Python reads its filters again when it is left
            pass

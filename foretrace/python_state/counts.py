"""Numbers that a program counts with: inputs of open value, and outputs.

`self.step += 1` leaves another number than there was. Once a run has shown that, the program runs
again with a symbol in the place of the number, so that the graph takes the one of its call.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from foretrace.ir.requirements import NUMBERS, Change, Entry, Place

OPEN: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""Numbers of the run"""


def is_open(item: Any) -> bool:
    """Whether it is a number of the run: an example's, or what follows from it."""
    return issubclass(type(item), OPEN)


def counted(before: Any, after: Any) -> bool:
    """Whether a number was there, and the run has left another."""
    if type(before) not in NUMBERS or before is after:
        return False
    return type(after) in NUMBERS or (is_open(after) and not issubclass(type(after), torch.SymBool))


def counted_in(changes: Iterable[Change]) -> Iterator[Change]:
    """The places that a run has bound to another number."""
    for change in changes:
        named = type(change.place) in (Place, Entry)
        if named and change.rebound and counted(change.place.before, change.after):
            yield change


class Counts:
    """The numbers of one program, as far as its runs have shown."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """of leaves of the arguments"""
        self._places: dict[Any, Change] = {}
        self._closed: set[Any] = set()
        """what a graph needs the number of"""
        self.never = False
        """whether all are closed: with one open the program has no graph"""

    def note(self, found: Iterable[Change | str]) -> bool:
        """Take what a run has found; whether it is more than was known."""
        more = False
        for each in found:
            key = _key(each)
            if not self.never and key not in self._closed | self._places.keys() | self.names:
                more = True
                if isinstance(each, str):
                    self.names.add(each)
                else:
                    self._places[key] = each
        return more

    def close_all(self) -> None:
        """Leave all of them as they are: with one open the program has no graph."""
        self.never = True
        self._places.clear()
        self.names.clear()

    def close(self, each: Place | str) -> None:
        """Leave one as the number that it is."""
        self._closed.add(key := _key(each))
        self._places.pop(key, None)
        self.names.discard(key)

    @contextmanager
    def lent(
        self, symbol: Callable[[Place], Any], given: dict[int, tuple[Any, Any]]
    ) -> Iterator[list[Change]]:
        """Inside, the program finds symbols; what it has left there is in the list at the end.

        Args:
            symbol: makes one for the number at a place.
            given: takes each, and the number, by the id of the one.
        """
        left, lent = list[Change](), list[tuple[Place, Any, str]]()
        try:
            for change in self._places.values():
                place = _anew(change.place)
                if type(place.before) in NUMBERS:
                    number = symbol(place)
                    lent.append((place, number, change.name))
                    given[id(number)] = number, place.before
                    place.bind(number)
            yield left
        finally:
            for place, number, name in lent:
                if place.now is not number:
                    left.append(Change(place, place.now, rebound=True, path=name))
                place.bind(place.before)


def _key(each: Change | Place | str) -> Any:
    if isinstance(each, str):
        return each
    place = each.place if isinstance(each, Change) else each
    return id(place.holder), place.key


def _anew(place: Place) -> Place:
    if isinstance(place, Entry):
        return Entry(place.name, place.holder, place.key, place.now)
    return Place(place.name, place.holder, place.now)

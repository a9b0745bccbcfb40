"""Numbers that a program counts with: inputs of open value, and outputs.

`self.step += 1` leaves another number than there was. Once a run has shown that, the program runs
again with a symbol in the place of the number, so that the graph takes the one of its call.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import is_not
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from foretrace.ir.pydata.containers import Structure, flatten, named_leaves
from foretrace.ir.pydata.location import Contents, Entry, Location
from foretrace.ir.pydata.members import SYMBOLIC, own_items, own_kind
from foretrace.ir.pydata.paths import at_path, with_item
from foretrace.ir.pydata.plain_data import plain
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.pydata.returned import kept_inside
from foretrace.ir.pydata.state import NUMBERS, OPEN, Change, StateRead
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.snapshot.changes import Called, name_of_leaf


def is_open(item: Any) -> bool:
    """Whether it is a number of the run: an example's, or what follows from it."""
    return issubclass(type(item), SYMBOLIC)


def counted(before: Any, after: Any) -> bool:
    """Whether a number was there, and the run has left another."""
    if type(before) not in NUMBERS or before is after:
        return False
    return type(after) in NUMBERS or (is_open(after) and not issubclass(type(after), torch.SymBool))


def counted_in(changes: Iterable[Change]) -> Iterator[tuple[Change, int]]:
    """The places that a run has bound to other numbers; which of their leaves these are."""
    for change in changes:
        if change.rebound and type(change.place) in (Location, Entry, Contents):
            (then, form), (now, other) = map(named_leaves, (change.place.before, change.after))
            if form == other:
                ends = change.place.before, change.after
                found = [counted(old, new) for (_, old), (_, new) in zip(then, now, strict=True)]
                same = _in_the_same(*ends, form, len(then)) if any(found) else ()
                for number, differs in enumerate(found):
                    if differs and number not in same:
                        yield replace(change, after=None), number


def _in_the_same(before: Any, after: Any, form: Structure, leaves: int) -> set[int]:
    """The numbers of leaves in containers and objects that stayed, and change by themselves."""
    inner = kept_inside(before, form, leaves)
    return {leaf for path, item, own in inner if at_path(after, path) is item for leaf in own}


def seen_to_differ(reads: Iterable[ReadLocation]) -> Iterator[tuple[Change, int]]:
    """The numbers that a capture has found in groups of optimizers, and that are others now.

    Also elsewhere, but these are guesses (`of_optimizer`).
    """
    for each in reads:
        in_group = type(each.holder) is dict and "params" in each.holder
        place = each.location if in_group or type(each.before) in NUMBERS else None
        if place is not None:
            yield from counted_in([Change(place, place.now, rebound=True)])


def of_optimizer(change: Change) -> bool:
    """Whether a place is in a group of an optimizer."""
    return type(change.place.holder) is dict and "params" in change.place.holder


def may_be_counted(
    reads: Iterable[ReadLocation], names: Container[object]
) -> Iterator[tuple[Change, int]]:
    """The numbers at places whose names the code stores to, on whatever way."""
    for each in reads:
        if type(each.before) not in (*NUMBERS, dict, OrderedDict):
            continue
        place, name = each.location, each.variable
        if place is not None and type(each.before) not in NUMBERS:
            yield from _entries_counted(each.name, place.now, names)
        elif place is not None and type(name) is str and name in names:
            yield Change(place, None, rebound=True), 0


def _entries_counted(
    name: str, holder: Any, names: Container[object]
) -> Iterator[tuple[Change, int]]:
    """The numbers in a dict of plain data, under such keys."""
    if own_kind(holder) is dict:
        found = [(key, number) for key, number in own_items(holder) if type(number) in NUMBERS]
        found = [(key, number) for key, number in found if type(key) is str and key in names]
        for key, number in found if found and plain(holder) else ():
            yield Change(Entry(name, holder, key, number), None, rebound=True), 0


def numbers_in(contents: Iterable[Contents]) -> Iterator[tuple[Change, int]]:
    """The numbers that containers hold, where these are few: each is an input.

    None in what they hold that can be changed, which a program finds as the very object.
    """
    for place in contents:
        leaves, form = named_leaves(place.before)
        few = leaves if len(leaves) <= FEW else []
        inner = kept_inside(place.before, form, len(leaves)) if few else ()
        inside = {leaf for _, _, own in inner for leaf in own}
        for number, (_, leaf) in enumerate(few):
            if type(leaf) in NUMBERS and number not in inside:
                yield Change(place, None, rebound=True), number


FEW: Final = 64
"""Leaves of a container, up to which the numbers among them are inputs"""


SCHEDULED: Final = (("initial_lr", "lr"), ("max_momentum", "momentum"), ("max_momentum", "betas"))
"""In a group of an optimizer's: what a schedule notes there first, and the number that it changes.

Source: torch/optim/lr_scheduler.py, torch 2.13; of `betas` it is the first.
"""


def scheduled(places: Sequence[ReadLocation]) -> Iterator[tuple[Change, int]]:
    """The numbers that a schedule changes between calls of the program, or on another way."""
    found = (each.before for each in places if isinstance(each.before, LRScheduler))
    groups = {id(group) for schedule in found for group in schedule.optimizer.param_groups}
    for each in places:
        if type(each.holder) is not dict or type(each.key) is not str:
            continue
        marked = any(mark in each.holder and each.key == key for mark, key in SCHEDULED)
        if marked or (each.key == "lr" and id(each.holder) in groups):
            place = each.location
            number, *_ = flatten(each.before)[0] or [None]
            if place is not None and type(number) in NUMBERS:
                yield Change(place, None, rebound=True), 0


class SymbolicCounters:
    """The numbers of one program, as far as its runs and calls have shown.

    `opens`: whether a number may be open at all, as what is asked of it is a guard then.
    """

    def __init__(self, *, opens: bool = True) -> None:
        self.names: set[str] = set()
        """of leaves of the arguments"""
        self._places: dict[Any, tuple[Change, set[int]]] = {}
        """by holder and key: changes, and which leaves of them are numbers"""
        self._closed: set[Any] = set()
        """what a graph needs the number of"""
        self._guessed: list[tuple[Change, int]] = []
        """those of them that no run has left other than they were"""
        self.never = not opens
        """whether all are closed: with one open the program has no graph"""

    def note(self, found: Iterable[tuple[Change, int] | str]) -> bool:
        """Take what a run has found; whether it is more than was known."""
        more = False
        for each in found:
            if self.never or _key(each) in self._closed:
                continue
            if isinstance(each, str):
                more |= each not in self.names
                self.names.add(each)
            else:
                change, number = each
                _, known = self._places.setdefault(_key(each)[:2], (change, set()))
                more |= number not in known
                known.add(number)
        return more

    def guess(self, found: Iterable[tuple[Change, int]]) -> bool:
        """Take what may be counted with, until it is shown that a graph needs the number."""
        new = [each for each in found if self.note([each])]
        self._guessed += new
        return bool(new)

    def drop_guesses(self) -> bool:
        """Close them; whether there were any."""
        dropped, self._guessed = self._guessed, []
        for change, number in dropped:
            self.close((change.place, number))
        return bool(dropped)

    def close_all(self) -> bool:
        """Leave all of them as they are: with one open the program has no graph, or another.

        Whether there were any.
        """
        had = bool(self.names) or any(numbers for _, numbers in self._places.values())
        self.never = True
        self._places.clear()
        self.names.clear()
        self._guessed.clear()
        return had

    def close(self, each: tuple[Location, int] | str) -> None:
        """Leave one as the number that it is."""
        self._closed.add(key := _key(each))
        if isinstance(each, str):
            self.names.discard(each)
        else:
            self._places[key[:2]][1].discard(each[1])

    @contextmanager
    def replaced(
        self,
        symbol: Callable[[StateRead, str], Any],
        outside: AccessMonitor | None,
        called: Mapping[int, Called],
    ) -> Iterator[list[Change]]:
        """Inside, the program finds symbols; what it has left there is in the list at the end.

        Args:
            symbol: makes one for the number at a place.
            outside: its `places.borrowed` takes each, and the number, by the id of the one.
            called: what dicts of optimizers are about, by id.
        """
        borrowed_by_id = {} if outside is None else outside.places.borrowed
        left, borrowed = list[Change](), list[tuple[Location, Any, list[Any], str]]()
        try:
            for change, known in self._places.values():
                place = change.place.refreshed
                leaves, structure = named_leaves(place.before)
                every = [leaf for _, leaf in leaves]
                # what an earlier capture has found there may be something else by now
                numbers = {i for i, leaf in enumerate(every) if i in known and _counts(leaf)}
                opened = [OPEN if i in numbers else leaf for i, leaf in enumerate(every)]
                for i in sorted(numbers):
                    read = StateRead(place, structure, tuple(opened), i, type(every[i]))
                    about, path = called.get(id(place.holder)), leaves[i][0]
                    name = about.of(place.key, path) if about else name_of_leaf(change, path)
                    every[i] = symbol(read, name)
                put = _with_numbers(place.before, structure, every, numbers)
                borrowed.append((place, put, every, change.name))
                borrowed_by_id[id(put)] = put, place.before
                place.bind(put)
            yield left
        finally:
            for place, put, every, name in borrowed:
                now = place.now
                if not (now is put or isinstance(place, Contents)) or _others(now, every):
                    left.append(Change(place, now, rebound=True, path=name))
                place.bind(place.before)


def _with_numbers(item: Any, structure: Structure, every: list[Any], numbers: set[int]) -> Any:
    """An item with other leaves, at these numbers; what holds none of them is the very object."""
    if not numbers:
        return item
    put, depth = structure.build(iter(every)), None
    for path, inner, own in kept_inside(item, structure, len(every)):
        if depth is not None and len(path) > depth:
            continue  # in the last that was put there
        depth = len(path) if own.isdisjoint(numbers) else None
        if depth is not None:
            put = with_item(put, path, inner)
    return put


def _counts(item: object) -> bool:
    return type(item) in NUMBERS


def _others(now: Any, then: list[Any]) -> bool:
    leaves = flatten(now)[0]
    return len(leaves) != len(then) or any(map(is_not, leaves, then))


def _key(each: tuple[Change | Location, int] | str) -> Any:
    if isinstance(each, str):
        return each
    place = each[0].place if isinstance(each[0], Change) else each[0]
    return *place.identity, each[1]

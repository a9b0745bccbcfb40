"""Objects that were there before a run, and that it returns or leaves: a call has the very ones.

Each call builds a result, and what a program leaves. So a list that a module has would be copied.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from foretrace.ir.program.call_requirements import RunNotes
from foretrace.ir.program.effects import FindObject
from foretrace.ir.pydata.location import Contents, Entry, FormerContents, Location
from foretrace.ir.pydata.members import DEFAULTS, MISSING, own_items, own_kind
from foretrace.ir.pydata.paths import Path, reached
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.returned import ResultParts
from foretrace.ir.pydata.state import Change
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.state_inputs import FILLED
from foretrace.python_state.snapshot.changes import filled
from foretrace.python_state.snapshot.heap import HeapSnapshot


class FoundObjects:
    """Where a call finds them, by their numbers.

    Args:
        before: what was there before the run.
        outside: what the program reads; None: all is read.
        result: what it returns.
        left: what it leaves.
        notes: of the other places that it leaves otherwise.
        begun: the containers and objects in the arguments when the program began.
    """

    def __init__(
        self, before: HeapSnapshot, outside: AccessMonitor | None, result: ResultParts,
        left: Sequence[Change], notes: RunNotes, begun: Sequence[tuple[Path, Any]],
    ) -> None:  # fmt: skip
        self.effects = list[FindObject]()
        self.numbers: dict[int, int] = {}
        """by id of the object"""
        items = {id(item): item for each in left for _, item in _items(each.after)}
        taken = result.items.keys() - result.arguments.keys()  # out of the arguments
        for path, item in begun:  # these first: a file has them, and no others
            if path[1:] and (id(item) in items or id(item) in taken):
                self._found(item, None, path)
        for place in (each.place for each in left):
            if isinstance(place, FormerContents):
                self._found(place.holder, place.at)
        items |= result.items
        known = {key for key, item in items.items() if before.knows(item)}
        wanted = known.difference(result.arguments, self.numbers)
        if wanted:
            others = {change.place.identity for change in (*left, *notes.changed)}
            places = [*_named(before, outside)]
            places.sort(key=lambda named: named[0].identity in others)
            self._find(wanted, places)

    def _find(self, wanted: set[int], places: list[tuple[Location, object]]) -> None:
        for place, item in places:
            if wanted.issubset(self.numbers):
                return
            for path, each in _items(item):
                if id(each) in wanted and id(each) not in self.numbers:
                    self._found(each, place, path)

    def _found(self, item: Any, place: Location | None, path: Path = ()) -> None:
        self.numbers[id(item)] = len(self.effects)
        self.effects.append(FindObject(place, path))


def _items(tree: Any) -> Iterator[tuple[Path, Any]]:
    return reached(tree, tuples=True)


def _named(
    before: HeapSnapshot, outside: AccessMonitor | None
) -> Iterator[tuple[Location, object]]:
    """What the program may have read by a name."""
    for place in () if outside is None else outside.places.values():
        yield Location(place.name, place.holder, None), place.before
    for place, item in before.named():
        called = place.name in DEFAULTS  # without a mention
        if outside is None or called or place.name in outside.mentions.attributes:
            yield place, item


def bound_equal(before: HeapSnapshot) -> Iterator[Change]:
    """Where the run has bound another container of plain data, equal to what was there.

    To `changes` that is none; but the other may be elsewhere, and be filled later.
    """
    for place, item in before.rebound():
        now = place.now
        if own_kind(now) in FILLED and plain(now) and plain(item) and same(now, item):
            bound = Change(Location(place.name, place.holder, item), now, rebound=True)
            yield before.itself(bound)


def in_several(changes: Iterable[Change]) -> set[int]:
    """The ids of the containers that several places have now."""
    counts = Counter[int]()
    for change in changes:
        if change.rebound and not change.itself:
            counts.update({id(item) for _, item in _items(change.after)})
    return {key for key, count in counts.items() if count > 1}


def shares(change: Change, elsewhere: Container[int], before: HeapSnapshot) -> bool:
    """Whether a new container that a place has is elsewhere, too, or holds one that was there.

    `elsewhere`: the ids of what is returned, or left at several places.
    """
    if not change.rebound or change.itself or isinstance(change.place, Contents):
        return False
    inside = _items(change.after)
    return any(id(item) in elsewhere or (path and before.knows(item)) for path, item in inside)


def former_contents(
    changes: Sequence[Change], bound: Sequence[Change], before: HeapSnapshot
) -> Iterator[Change]:
    """Join the changes of each container of which the only place holds another one now.

    `bound`: names that were bound, which are none of the changes any more.
    """
    every = [each for each in (*changes, *bound) if each.rebound]
    left = {id(each.place.before): each.place for each in every}
    inside = dict[int, list[Change]]()
    for each in changes:
        at = left.get(id(each.place.holder))
        if at is None or not isinstance(each.place, (Contents, Entry)):
            yield each
        elif before.places_of(at.before) == 1:
            inside.setdefault(id(at.before), []).append(each)
        else:
            yield each
    for key, ones in inside.items():
        content, at = _content_before(before.name(left[key].before), ones), left[key]
        place = FormerContents(content.place.name, at.before, content.place.before, at)
        yield replace(content, place=place, at=ones[0].at)


def _content_before(name: str, changes: Sequence[Change]) -> Change:
    """The changes of one container, some of them of entries of a dict, as one of its content."""
    place = changes[0].place
    if isinstance(place, Contents):
        return changes[0]
    entries = {each.place.key: each.place.before for each in changes}
    now = [(key, entries.get(key, item)) for key, item in own_items(place.holder)]
    return filled(name, place.holder, dict(pair for pair in now if pair[1] is not MISSING))

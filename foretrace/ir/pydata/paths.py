"""Containers and objects in a nested one, each with its path; also those at two places."""

from collections.abc import Collection, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

from foretrace.ir.pydata.heap_walk import walk_nested
from foretrace.ir.pydata.members import MISSING, lookup, own_items, own_kind
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.ir.pydata.plain_data import plain

Path = tuple[tuple[bool, Any], ...]
"""Steps into a nested object: whether it is an attribute, and its key or name"""


class Reached(NamedTuple):
    """A container, or an object with its attributes, and the way to it."""

    path: Path
    item: Any
    attributes: dict[str, Any] | None


def reached(
    tree: Any, ends: Collection[int] = (), *, tuples: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Containers that may be written to, and objects with tensors, with their paths; each once.

    Args:
        tree: where they are.
        ends: ids of those that are not looked into.
        tuples: whether tuples that are not empty are among them.
    """

    def inside(step: Reached) -> Iterator[Reached]:
        return iter(()) if id(step.item) in ends else _inside(step)

    for each in walk_nested(_first_step(tree), inside, attrgetter("item")):
        if _shareable(each.item, tuples=tuples):
            yield each.path, each.item


class Part(NamedTuple):
    """A container or an object at one place of a nested one."""

    path: Path
    item: Any
    first: Path | None
    """where it is first, if it is there already; what it holds is not looked at again"""


def parts(tree: Any, ends: Collection[int] = ()) -> Iterator[Part]:
    """Containers and objects at all of their places, also tuples that are not empty, in order.

    `ends` as for `reached`.
    """
    first, waiting = dict[int, Path](), [*_first_step(tree)]
    while waiting:
        step = waiting.pop()
        again = first.setdefault(id(step.item), step.path)
        if again is step.path and id(step.item) not in ends:
            waiting += reversed([*_inside(step)])
        if _shareable(step.item, tuples=True):
            yield Part(step.path, step.item, None if again is step.path else again)


def repeats(tree: Any, ends: Collection[int] = ()) -> tuple[tuple[Path, Path], ...]:
    """Where containers and objects are a second time, and where first; `ends` as for `reached`."""
    twice = ((p.path, p.item, p.first) for p in parts(tree, ends) if p.first is not None)
    return tuple([(path, first) for path, item, first in twice if not _is_value(item)])


def _is_value(item: Any) -> bool:
    """Whether an equal object can take its place: of a tuple of numbers and texts, it can."""
    return isinstance(item, tuple) and plain(item) and not any(True for _ in reached(item))


def _shareable(item: Any, *, tuples: bool) -> bool:
    """Whether it matters which object it is: of a set, and unless `tuples` of a tuple, not."""
    if isinstance(item, tuple):
        return tuples and tuple.__len__(item) > 0
    return not isinstance(item, (set, frozenset))


def _first_step(tree: Any) -> Iterator[Reached]:
    """A container or an object itself; nothing of a leaf."""
    return _step((), tree)


def _inside(step: Reached) -> Iterator[Reached]:
    """The containers and objects that one holds; the last comes first."""
    found, named = step.attributes, step.attributes is not None
    items = list(own_items(step.item) if found is None else found.items())
    for key, each in reversed(items):
        yield from _step((*step.path, (named, key)), each)


def _step(path: Path, item: Any) -> Iterator[Reached]:
    attributes = None if own_kind(item) else object_attributes(item)
    if own_kind(item) or attributes:
        yield Reached(path, item, attributes)


def item_at(tree: Any, path: Path) -> Any:
    """What is there in a nested object; the user's code does not run.

    Raises:
        LookupError: nothing is.
        TypeError: it is nested otherwise.
    """
    for named, key in path:
        tree = lookup(tree, key) if named else own_kind(tree).__getitem__(tree, key)
        if tree is MISSING:
            raise LookupError(key)
    return tree


def at_path(tree: Any, path: Path) -> Any:
    """The same; MISSING if nothing is there."""
    try:
        return item_at(tree, path)
    except (LookupError, AttributeError, TypeError):
        return MISSING


def with_item(tree: Any, path: Path, item: Any) -> Any:
    """The tree with an item at a place; a tuple on the way is another."""
    if not path:
        return item
    (attribute, key), *rest = path
    below = with_item(item_at(tree, path[:1]), tuple(rest), item)
    if isinstance(tree, tuple):
        parts = [*tree]
        parts[key] = below
        return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)
    if attribute:
        object.__setattr__(tree, key, below)
    else:
        own_kind(tree).__setitem__(tree, key, below)
    return tree

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
        return iter(()) if id(step.item) in ends else inside_of(step)

    for each in walk_nested(first_step(tree), inside, attrgetter("item")):
        if shareable(each.item, tuples=tuples):
            yield each.path, each.item


def repeats(tree: Any, ends: Collection[int] = ()) -> tuple[tuple[Path, Path], ...]:
    """Where containers and objects are a second time, and where first; `ends` as for `reached`.

    A tuple of plain data is what it holds.
    """
    first, found = dict[int, Path](), list[tuple[Path, Path]]()
    waiting = [*first_step(tree)]
    while waiting:
        step = waiting.pop()
        key, data = id(step.item), isinstance(step.item, tuple) and plain(step.item)
        if not data and first.setdefault(key, step.path) is not step.path:
            found.append((step.path, first[key]))
        elif key not in ends:
            waiting += reversed([*inside_of(step)])
    return tuple(found)


def shareable(item: Any, *, tuples: bool) -> bool:
    """Whether it matters which object it is: of a set, and unless `tuples` of a tuple, not."""
    if isinstance(item, tuple):
        return tuples and tuple.__len__(item) > 0
    return not isinstance(item, (set, frozenset))


def first_step(tree: Any) -> Iterator[Reached]:
    """A container or an object itself; nothing of a leaf."""
    return _step((), tree)


def inside_of(step: Reached) -> Iterator[Reached]:
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

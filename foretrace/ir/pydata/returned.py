"""Containers and objects in a result that are the caller's own."""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from foretrace.ir.pydata.containers import shared_in
from foretrace.ir.pydata.heap_walk import walk_nested
from foretrace.ir.pydata.members import own_items, own_kind
from foretrace.ir.pydata.object_containers import object_attributes

Path = tuple[tuple[bool, Any], ...]
"""Steps into a nested object: whether it is an attribute, and its key or name"""


@dataclasses.dataclass(frozen=True, slots=True)
class ReturnedArgument:
    """A container or object in the result that is one of the caller's, and no copy of it."""

    place: Path
    """where it is in the result"""
    source: Path
    """where in the arguments; nothing if it is `itself`"""
    itself: Any = None


def handed_back(result: Any, call: Any, filled: Sequence[Any]) -> list[ReturnedArgument]:
    """What is in the result of the arguments' own containers and objects, and of those `filled`."""
    paths = {id(item): path for path, item in _reached(call) if path[1:]}
    known = {id(item): item for item in filled}
    if not (paths or known):
        return []
    found = list[ReturnedArgument]()
    for path, item in _reached(result, paths.keys() | known.keys()):
        if id(item) in paths:
            found.append(ReturnedArgument(path, paths[id(item)]))
        elif id(item) in known:
            found.append(ReturnedArgument(path, (), item))
    return found


def unshared(items: Any, others: Any, known: Collection[int], ends: Collection[int] = ()) -> bool:
    """Whether each container or object in `items` that can be changed is at one place alone.

    `known`: the ids of what others hold, beside `others`, which are looked into up to `ends`.
    """
    inside = {id(item) for path, item in _reached(items) if path}
    elsewhere = {id(item) for _, item in _reached(others, ends)}
    return not shared_in(items) and inside.isdisjoint(known) and inside.isdisjoint(elsewhere)


def restore_identity(handed: Sequence[ReturnedArgument], result: Any, call: Any) -> Any:
    """The result with the caller's own objects in it."""
    for each in handed:
        item = each.itself if each.itself is not None else _at(call, each.source)
        result = _with(result, each.place, item)
    return result


def _reached(tree: Any, ends: Collection[int] = ()) -> Iterator[tuple[Path, Any]]:
    """Containers that may be written to, and objects with tensors, with their paths."""

    def inside(step: Reached) -> Iterator[Reached]:
        if id(step.item) not in ends:
            found, named = step.attributes, step.attributes is not None
            items = list(own_items(step.item) if found is None else found.items())
            for key, each in reversed(items):
                yield from _step((*step.path, (named, key)), each)

    for each in walk_nested(_step((), tree), inside, attrgetter("item")):
        if not isinstance(each.item, (tuple, set, frozenset)):
            yield each.path, each.item


class Reached(NamedTuple):
    """A container, or an object with its attributes, and the way to it."""

    path: Path
    item: Any
    attributes: dict[str, Any] | None


def _step(path: Path, item: Any) -> Iterator[Reached]:
    attributes = None if own_kind(item) else object_attributes(item)
    if own_kind(item) or attributes:
        yield Reached(path, item, attributes)


def _at(tree: Any, path: Path) -> Any:
    for named, key in path:
        tree = getattr(tree, key) if named else tree[key]
    return tree


def _with(tree: Any, path: Path, item: Any) -> Any:
    """The tree with an item at a place; a tuple on the way is another."""
    if not path:
        return item
    (attribute, key), *rest = path
    below = _with(_at(tree, path[:1]), tuple(rest), item)
    if isinstance(tree, tuple):
        parts = [*tree]
        parts[key] = below
        return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)
    if attribute:
        object.__setattr__(tree, key, below)
    else:
        tree[key] = below
    return tree

"""Containers and objects in a result that others hold, too: the caller, or Python's state."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from foretrace import torch_api
from foretrace.ir.pydata.containers import Structure, flatten, shared_in
from foretrace.ir.pydata.heap_walk import walk_nested
from foretrace.ir.pydata.members import MISSING, own_items, own_kind
from foretrace.ir.pydata.object_containers import object_attributes

Path = tuple[tuple[bool, Any], ...]
"""Steps into a nested object: whether it is an attribute, and its key or name"""


@dataclasses.dataclass(frozen=True, slots=True)
class ReturnedArgument:
    """A container or object in the result that others hold, too, and no copy of it."""

    place: Path
    """where it is in the result"""
    source: Path
    """where it is in the arguments, or in one of the others below"""
    itself: Any = None
    """the object, where no call finds it anywhere"""
    state: int | None = None
    """the number of the state that a call leaves, in which it is"""
    found: int | None = None
    """its number among the objects that a call finds before it leaves anything"""


@dataclasses.dataclass(frozen=True, slots=True)
class ReturnedAgain(ReturnedArgument):
    """One that is in the result a second time; `source`: where it is first."""


class Part(NamedTuple):
    """A container or an object at one place of a result."""

    path: Path
    item: Any
    first: Path | None
    """where it is first, if it is there already; what it holds is not looked at again"""


class ResultParts:
    """The containers and objects of a result, while all is as the run has left it.

    Args:
        result: what the program returns.
        call: its arguments, of which containers and objects are their own.
    """

    def __init__(self, result: Any, call: Any) -> None:
        self.parts = [*_parts(result)]
        """in the order of a result; what one holds follows it"""
        self.arguments = {id(item): path for path, item in _reached(call, tuples=True)}
        """by id, where the arguments have theirs"""
        self.items = {id(part.item): part.item for part in self.parts}

    def handed_back(
        self, states: Sequence[Any], found: Mapping[int, int], filled: Sequence[Any]
    ) -> Iterator[ReturnedArgument]:
        """What others hold, too, after a call, and what is in the result twice.

        What is in one that others hold is whole.

        Args:
            states: what each state is to hold that a call leaves.
            found: by id, the numbers of the objects that a call finds.
            filled: containers that were there before, of which the content is another.
        """
        known, depth = self._known(states, found, filled), None
        for path, item, first in self.parts:
            if depth is not None and len(path) > depth:
                continue  # in the last that was known
            depth = len(path) if id(item) in known else None
            if id(item) in known:
                yield dataclasses.replace(known[id(item)], place=path)
            elif first is not None:
                yield ReturnedAgain(path, first)

    def _known(
        self, states: Sequence[Any], found: Mapping[int, int], filled: Sequence[Any]
    ) -> dict[int, ReturnedArgument]:
        """By id, where a call has what others hold, too; its place in the result is left open."""
        passed = {key: path for key, path in self.arguments.items() if path[1:]}
        known = {key: ReturnedArgument((), path) for key, path in passed.items()}
        left = {id(item): ReturnedArgument((), (), item) for item in filled}
        for number, state in enumerate(states):
            for path, item in _reached(state, found, tuples=True):
                left.setdefault(id(item), ReturnedArgument((), path, state=number))
        each = {key: ReturnedArgument((), (), found=number) for key, number in found.items()}
        return known | left | each


def _parts(result: Any) -> Iterator[Part]:
    first, waiting = dict[int, Path](), [*_step((), result)]
    while waiting:
        step = waiting.pop()
        again = first.setdefault(id(step.item), step.path)
        if again is step.path:
            waiting += reversed([*_inside(step)])
        if _shareable(step.item, tuples=True):
            yield Part(step.path, step.item, None if again is step.path else again)


def shareable(items: Any) -> Iterator[tuple[Path, Any]]:
    """The containers and objects with tensors in `items`, and where; no empty tuple, no set."""
    return _reached(items, tuples=True)


def kept_inside(
    tree: Any, structure: Structure, leaves: int
) -> Iterator[tuple[Path, Any, set[int]]]:
    """What can be changed in a nested object: where, the very one, and the numbers of its leaves.

    `structure` and `leaves`: of the object, as `named_leaves` has them.
    """
    with torch_api.plain_torch():
        marks = [torch.empty(0) for _ in range(leaves)]
    numbers = {id(mark): number for number, mark in enumerate(marks)}
    for path, marked in _reached(structure.build(iter(marks))):
        if path:
            inside = {numbers[id(mark)] for mark in flatten(marked)[0] if id(mark) in numbers}
            yield path, _at(tree, path), inside


def at_path(tree: Any, path: Path) -> Any:
    """What is there in a nested object; MISSING if nothing."""
    try:
        return _at(tree, path)
    except (LookupError, AttributeError, TypeError):
        return MISSING


def unshared(items: Any, others: Any, known: Collection[int], ends: Collection[int] = ()) -> bool:
    """Whether each container or object in `items` that can be changed is at one place alone.

    `known`: the ids of what others hold, beside `others`, which are looked into up to `ends`.
    """
    inside = {id(item) for path, item in _reached(items) if path}
    elsewhere = {id(item) for _, item in _reached(others, ends)}
    return not shared_in(items) and inside.isdisjoint(known) and inside.isdisjoint(elsewhere)


def restore_identity(
    handed: Sequence[ReturnedArgument],
    result: Any,
    call: Any,
    built: Sequence[Any],
    found: Sequence[Any],
) -> Any:
    """The result with the very objects in it.

    Args:
        handed: which.
        result: what the call has computed.
        call: its arguments.
        built: what each state holds now.
        found: the objects that it has found.
    """
    for each in handed:
        if isinstance(each, ReturnedAgain):
            item = at_path(result, each.source)
        elif each.itself is not None:
            item = each.itself
        elif each.found is not None:
            item = found[each.found]
        else:
            item = _at(call if each.state is None else built[each.state], each.source)
        if item is not MISSING:
            result = with_item(result, each.place, item)
    return result


def _reached(
    tree: Any, ends: Collection[int] = (), *, tuples: bool = False
) -> Iterator[tuple[Path, Any]]:
    """Containers that may be written to, and objects with tensors, with their paths.

    Args:
        tree: where they are.
        ends: ids of those that are not looked into.
        tuples: whether tuples that are not empty are among them.
    """

    def inside(step: Reached) -> Iterator[Reached]:
        return iter(()) if id(step.item) in ends else _inside(step)

    for each in walk_nested(_step((), tree), inside, attrgetter("item")):
        if _shareable(each.item, tuples=tuples):
            yield each.path, each.item


class Reached(NamedTuple):
    """A container, or an object with its attributes, and the way to it."""

    path: Path
    item: Any
    attributes: dict[str, Any] | None


def _shareable(item: Any, *, tuples: bool) -> bool:
    if isinstance(item, tuple):
        return tuples and tuple.__len__(item) > 0
    return not isinstance(item, (set, frozenset))


def _inside(step: Reached) -> Iterator[Reached]:
    found, named = step.attributes, step.attributes is not None
    items = list(own_items(step.item) if found is None else found.items())
    for key, each in reversed(items):
        yield from _step((*step.path, (named, key)), each)


def _step(path: Path, item: Any) -> Iterator[Reached]:
    attributes = None if own_kind(item) else object_attributes(item)
    if own_kind(item) or attributes:
        yield Reached(path, item, attributes)


def _at(tree: Any, path: Path) -> Any:
    for named, key in path:
        tree = getattr(tree, key) if named else tree[key]
    return tree


def with_item(tree: Any, path: Path, item: Any) -> Any:
    """The tree with an item at a place; a tuple on the way is another."""
    if not path:
        return item
    (attribute, key), *rest = path
    below = with_item(_at(tree, path[:1]), tuple(rest), item)
    if isinstance(tree, tuple):
        parts = [*tree]
        parts[key] = below
        return tree._make(parts) if hasattr(tree, "_make") else tuple(parts)
    if attribute:
        object.__setattr__(tree, key, below)
    else:
        tree[key] = below
    return tree

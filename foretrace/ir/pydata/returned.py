"""Containers and objects in a result that others hold, too: the caller, or Python's state."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.pydata.containers import Structure, flatten
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.paths import (
    Path,
    at_path,
    item_at,
    parts,
    reached,
    with_item,
)


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


class ResultParts:
    """The containers and objects of a result, while all is as the run has left it.

    Args:
        result: what the program returns.
        call: its arguments, of which containers and objects are their own.
    """

    def __init__(self, result: Any, call: Any) -> None:
        self.parts = [*parts(result)]
        """in the order of a result; what one holds follows it"""
        self.arguments = {id(item): path for path, item in reached(call, tuples=True)}
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
            for path, item in reached(state, found, tuples=True):
                left.setdefault(id(item), ReturnedArgument((), path, state=number))
        each = {key: ReturnedArgument((), (), found=number) for key, number in found.items()}
        return left | each | known


def kept_inside(
    tree: Any, structure: Structure, leaves: int
) -> Iterator[tuple[Path, Any, set[int]]]:
    """What can be changed in a nested object: where, the very one, and the numbers of its leaves.

    `structure` and `leaves`: of the object, as `named_leaves` has them.
    """
    with torch_api.plain_torch():
        marks = [torch.empty(0) for _ in range(leaves)]
    numbers = {id(mark): number for number, mark in enumerate(marks)}
    for path, marked in reached(structure.build(iter(marks))):
        if path:
            inside = {numbers[id(mark)] for mark in flatten(marked)[0] if id(mark) in numbers}
            yield path, item_at(tree, path), inside


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
            item = item_at(call if each.state is None else built[each.state], each.source)
        if item is not MISSING:
            result = with_item(result, each.place, item)
    return result

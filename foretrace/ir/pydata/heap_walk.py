"""The one walk over Python's heap: each object once, the near ones first or as they are nested.

Who walks says what lies inside of a step: containers alone, attributes that code mentions, all that
Python's collector knows of.
"""

import sys
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, TypeVar

Step = TypeVar("Step")
"""An object, or an object with what is known of the way to it"""


def walk_heap(
    roots: Iterable[Any],
    inside: Callable[[Any], Iterable[Any]],
    *,
    depth: int = sys.maxsize,
    most: int = sys.maxsize,
    leaves: Container[Any] = (),
    seen: dict[int, Any] | None = None,
) -> Iterator[Any]:
    """What objects lead to, the near ones first and each once.

    Args:
        roots: the objects that the walk begins with.
        inside: what an object holds. It is asked when the object was yielded.
        depth: how many steps the walk goes away from where it begins.
        most: how many objects it sees; it leaves out what is farther away.
        leaves: types of which it sees no object.
        seen: objects that it does not enter, by id. It takes all that the walk enters, and keeps
            it alive, so that no other object gets the same id.
    """
    seen = {} if seen is None else seen
    level = list(roots)
    while level:
        found: list[Any] = []
        for item in level:
            if type(item) not in leaves and id(item) not in seen and len(seen) < most:
                seen[id(item)] = item
                yield item
                if depth:
                    found += inside(item)
        level, depth = found, depth - 1


def walk_nested(
    steps: Iterable[Step],
    inside: Callable[[Step], Iterable[Step]],
    of: Callable[[Step], Any],
    seen: dict[int, Any] | None = None,
) -> Iterator[Step]:
    """The same as objects are nested: what one leads to comes before the next of its siblings.

    Args:
        steps: those that the walk begins with.
        inside: the steps to what an object holds, taken one by one.
        of: the object of a step.
        seen: as `walk_heap` has it.
    """
    seen = {} if seen is None else seen
    pending = [iter(steps)]
    while pending:
        for step in pending[-1]:
            if id(item := of(step)) not in seen:
                seen[id(item)] = item
                yield step
                pending.append(iter(inside(step)))
                break
        else:
            pending.pop()

"""Nested structures of lists, tuples and dicts, as the arguments and results of ops are."""

from collections.abc import Callable, Iterator
from typing import Any


def map_tree(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The structure with every leaf changed; a named tuple is a plain one then."""
    if isinstance(tree, (tuple, list)):
        found = [map_tree(item, change) for item in tree]
        return found if isinstance(tree, list) else tuple(found)
    if isinstance(tree, dict):
        return {key: map_tree(item, change) for key, item in tree.items()}
    return change(tree)


def pairs(tree: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of a structure, each with what another of the same form has in its place."""
    if isinstance(tree, (tuple, list)):
        for mine, theirs in zip(tree, other, strict=True):
            yield from pairs(mine, theirs)
    else:
        yield tree, other


def leaves(tree: Any) -> list[Any]:
    """What is not a list or a tuple, left to right."""
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]

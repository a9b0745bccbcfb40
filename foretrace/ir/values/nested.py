"""Nested structures, as the arguments and results of ops are.

One rule: lists, tuples and dicts are entered, and all else is a leaf. A named tuple, and a class of
torch's that is a tuple, is a plain one in what is built.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

CONTAINERS: Final = (tuple, list, dict)
"""What is entered"""


def map_tree(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The structure with every leaf changed."""
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
    elif isinstance(tree, dict):
        for key, mine in tree.items():
            yield from pairs(mine, other[key])
    else:
        yield tree, other


def leaves(tree: Any) -> list[Any]:
    """The leaves, left to right."""
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in leaves(item)]
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    return [tree]

"""Nested structures of lists, tuples and dicts, as the arguments and results of ops are."""

from collections.abc import Callable
from typing import Any


def map_tree(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The structure with every leaf changed; a named tuple is a plain one then."""
    if isinstance(tree, (tuple, list)):
        found = [map_tree(item, change) for item in tree]
        return found if isinstance(tree, list) else tuple(found)
    if isinstance(tree, dict):
        return {key: map_tree(item, change) for key, item in tree.items()}
    return change(tree)


def leaves(tree: Any) -> list[Any]:
    """What is not a list or a tuple, left to right."""
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]

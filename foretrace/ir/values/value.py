"""Tensors of a program, each known by identity, and the trees of arguments that they are in."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from foretrace.ir.values.nested import CONTAINERS, map_tree
from foretrace.ir.values.tensor_type import TensorType

Tree: TypeAlias = Any
"""Values and constants, nested in tuples, lists and dicts (`nested.py`), as the call had them."""
NESTED = frozenset(CONTAINERS)
ATOMS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of arguments in which no value is"""


class Value:
    """One tensor, known by identity."""

    __slots__ = ("hint", "type")

    def __init__(self, type: TensorType, hint: str = "") -> None:
        self.type, self.hint = type, hint

    def __repr__(self) -> str:
        return f"%{self.hint or format(id(self), 'x')[-5:]}: {self.type!r}"


def values_in(tree: Tree) -> list[Value]:
    """The values of a nested structure, left to right."""
    found: list[Value] = []
    _collect(tree, found)
    return found


def _collect(tree: Tree, found: list[Value]) -> None:
    kind = tree.__class__
    if kind is Value:
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            kind = item.__class__
            if kind is Value:
                found.append(item)
            elif kind in NESTED or (kind not in ATOMS and isinstance(item, CONTAINERS)):
                _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)


def map_values(tree: Tree, change: Callable[[Value], Tree]) -> Tree:
    """The structure with every value replaced by `change(value)`."""
    return map_tree(tree, lambda leaf: change(leaf) if isinstance(leaf, Value) else leaf)


def substitute(tree: Tree, env: dict[Value, Any]) -> Tree:
    """The structure with every value that `env` knows replaced."""
    kind = type(tree)
    if kind is Value:
        return env.get(tree, tree)
    if kind in ATOMS:
        return tree
    if isinstance(tree, (tuple, list)):
        found = [item if type(item) in ATOMS else substitute(item, env) for item in tree]
        return found if isinstance(tree, list) else tuple(found)
    if isinstance(tree, dict):
        return {key: substitute(item, env) for key, item in tree.items()} if tree else tree
    return tree

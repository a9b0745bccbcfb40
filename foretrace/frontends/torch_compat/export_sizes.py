"""Sizes 1 and 0 of an exported program: it takes those for which its graph is shown to hold.

A file has one graph, and nobody can ask later. So they are tried when it is made, and what is not
shown is asserted away by the file itself: torch takes every open size for 2 or more, and does not
check it.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any, Final, TypeAlias

import sympy

from foretrace import torch_api
from foretrace.ir.program.recording import Recording
from foretrace.ir.symbols.symbols import MANY, Numbers
from foretrace.runtime.guards.sizes_0_1 import SmallSizes

PAIRED: Final = 2
"""With so many open sizes each two are tried together; of more, one may be small at a time"""

Group: TypeAlias = tuple[sympy.Symbol, ...]
"""Open sizes that are equal"""


class Shown:
    """Which open sizes of a graph may be 1, and which 0.

    Args:
        recorded: the record.
        small: tells of which sizes its graph holds.
    """

    def __init__(self, recorded: Recording, small: SmallSizes) -> None:
        self.least = recorded.symbols.reaches_down()
        ranges = recorded.symbols.ranges().items()
        self.groups = _groups(recorded, {symbol for symbol, (low, _) in ranges if low == MANY})
        self._holds: Callable[[Numbers], bool] = small.everywhere
        self.allowed = [self._alone(group) for group in self.groups]

    def _alone(self, group: Group) -> list[int]:
        low = max(self.least.get(symbol, MANY) for symbol in group)  # by the user's Dim
        return [n for n in range(low, MANY) if self._holds(dict.fromkeys(group, n))]

    def conditions(self, where: dict[sympy.Symbol, str]) -> list[str]:
        """What a file asserts of its sizes, each given by an expression."""
        told = [next((where[s] for s in group if s in where), None) for group in self.groups]
        pairs = zip(told, self.groups, self.allowed, strict=True)
        found = [(at, group, allowed) for at, group, allowed in pairs if at is not None]
        made = [text for at, _, allowed in found for text in _range(at, allowed)]
        some = [(at, group, allowed) for at, group, allowed in found if allowed]
        if len(some) > PAIRED:
            large = " + ".join(f"({at} >= {MANY})" for at, *_ in some)
            return [*made, f"{large} >= {len(some) - 1}"]
        for (at, group, allowed), (other, others, more) in combinations(some, 2):
            both = product(allowed, more)
            if not all(
                self._holds({**dict.fromkeys(group, n), **dict.fromkeys(others, m)})
                for n, m in both
            ):
                made.append(f"{at} >= {MANY} or {other} >= {MANY}")
        return made

    def ranges(self, constraints: dict[sympy.Expr, Any]) -> dict[sympy.Expr, Any]:
        """torch.export's ranges, from the least size on that is shown where nobody has said one."""
        least = {
            symbol: min(allowed)
            for group, allowed in zip(self.groups, self.allowed, strict=True)
            if allowed
            for symbol in group
        }
        return {
            expr: torch_api.ValueRanges(least[expr], limits.upper)
            if expr in least and limits.lower == MANY
            else limits
            for expr, limits in constraints.items()
        }


def _range(at: str, allowed: Sequence[int]) -> list[str]:
    """What a size has to be; torch itself checks no range that begins at 2 or below."""
    if not allowed:
        return [f"{at} >= {MANY}"]
    return [f"{at} != {n}" for n in range(MANY) if n not in allowed]


def _groups(recorded: Recording, small: set[sympy.Symbol]) -> list[Group]:
    found = dict[Any, list[sympy.Symbol]]()
    for symbol in sorted(small, key=str):
        found.setdefault(recorded.symbols.simplify(symbol), []).append(symbol)
    return [tuple(group) for group in found.values()]


def places(
    recorded: Recording, leaves: Sequence[Any], paths: dict[int, str]
) -> dict[sympy.Symbol, str]:
    """Where a call has each open size.

    Args:
        recorded: the record.
        leaves: the arguments of the example, in order.
        paths: an expression for each of them, by its identity.
    """
    names, constants = recorded.requires.names, recorded.requires.constants
    given = [leaf for leaf, name in zip(leaves, names, strict=True) if name not in constants]
    return {
        size: f"{paths[id(given[item.argument])]}.size()[{dim}]"
        for item in reversed(recorded.inputs)
        if item.argument is not None and item.size is None
        for dim, size in enumerate(item.value.type.shape)
        if isinstance(size, sympy.Symbol)
    }

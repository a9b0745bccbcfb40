"""What was learnt of operators: for this capture, and for every capture of the process.

What torch was once asked (types of results, bodies, derivatives) is the same in the next capture,
as long as it is about torch's own operators and about sizes that are numbers. Open sizes are of one
capture: an answer about them has made guards there.
"""

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch

from foretrace import torch_api
from foretrace.ir.types import TensorType

T = TypeVar("T")

PLAIN = frozenset({
    int, bool, str, type(None), complex, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip
"""Arguments that are constants and their own key; a float's is its hexadecimal form."""


OWN = frozenset({"aten", "prims"})
"""Namespaces of torch's own operators; those of others may be registered anew."""

MOST = 50_000
"""Answers of one kind that are kept; a process that learns more begins again."""


@dataclass(slots=True, eq=False)
class Learnt:
    """Everything that holds for all captures under the same surroundings, by kind."""

    meanings: dict[Any, Any] = field(default_factory=dict)
    formulas: dict[Any, Any] = field(default_factory=dict)
    """meanings inside derivatives"""
    results: dict[Any, Any] = field(default_factory=dict)
    followed: dict[Any, Any] = field(default_factory=dict)
    rules: dict[Any, Any] = field(default_factory=dict)
    below_autograd: set[Any] = field(default_factory=set)
    """factories that Python calls below autograd, so that nothing follows their results"""


class Memory(Generic[T]):
    """Answers of one kind by key: those of this capture, then those of all."""

    __slots__ = ("_here", "_lasting")

    def __init__(self, lasting: dict[Any, T]) -> None:
        self._here: dict[Any, T] = {}
        self._lasting = lasting

    def get(self, key: Any) -> T | None:
        """The answer, if it is known."""
        found = self._here.get(key)
        return self._lasting.get(key) if found is None else found

    def keep(self, key: Any, answer: T, *, lasting: bool = True) -> T:
        """Remember an answer; `lasting`: whether it may hold in other captures, if its key does."""
        if not (lasting and lasts(key)):
            self._here[key] = answer
            return answer
        if len(self._lasting) >= MOST:
            self._lasting.clear()
        self._lasting[key] = answer
        return answer


def lasts(key: Any) -> bool:
    """Whether a key means the same in every capture."""
    kind = type(key)
    if kind is tuple or kind is frozenset:
        return all(map(lasts, key))
    if kind is TensorType:
        return not key.symbols
    return kind in PLAIN or kind is type or (kind is torch_api.OpOverload and key.namespace in OWN)

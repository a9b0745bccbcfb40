"""How a tensor differs from the one that a capture saw, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.runtime.checks import shown


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a tensor was, for telling how another differs."""

    name: str
    facts: tuple[tuple[str, Any], ...]
    shape: tuple[int | None, ...]
    stride: tuple[int, ...] | None

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, free: frozenset[int]) -> "TensorFacts":
        shape = tuple(None if d in free else n for d, n in enumerate(tensor.shape))
        return cls(name, _facts(tensor), shape, None if free else tensor.stride())

    def difference(self, now: Any) -> str:
        """What differs, in words; empty if nothing does."""
        if not isinstance(now, torch.Tensor):
            return f"{self.name} is {shown(now)}, no tensor"
        for (what, before), (_, found) in zip(self.facts, _facts(now), strict=True):
            if before != found:
                return f"{self.name} has {what} {found}, the capture has {before}"
        for dim, (size, found) in enumerate(zip(self.shape, now.shape, strict=True)):
            if size is not None and size != found:
                return f"size {dim} of {self.name} is {found}, the capture has {size}"
        if self.stride is not None and now.stride() != self.stride:
            return f"{self.name} has strides {now.stride()}, the capture has {self.stride}"
        return ""


def _facts(tensor: torch.Tensor) -> tuple[tuple[str, Any], ...]:
    return (
        ("class", type(tensor).__name__),
        ("dtype", tensor.dtype),
        ("device", tensor.device),
        ("requires_grad", tensor.requires_grad),
        ("number of dimensions", tensor.dim()),
        ("layout", tensor.layout),
        ("conjugate bit", tensor.is_conj()),
        ("negative bit", tensor.is_neg()),
        ("inference mode", tensor.is_inference()),
    )


class Telling:
    """Tells what the C++ check of all tensors found."""

    def __init__(self, facts: list[TensorFacts]) -> None:
        self.facts = facts

    def __call__(self, *tensors: Any) -> str:
        for facts, tensor in zip(self.facts, tensors, strict=True):
            found = facts.difference(tensor)
            if found:
                return found
        for second, tensor in enumerate(tensors):
            for first in range(second):
                if tensors[first] is tensor:
                    names = self.facts[first].name, self.facts[second].name
                    return f"{names[0]} and {names[1]} are one tensor now"
        return "torch's own check of the tensors failed (modes, or keys of dispatch)"


def apart(written: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    """Whether none of `written` shares memory with another tensor of either."""
    memories = {id(t): t.untyped_storage().data_ptr() for t in (*written, *given)}
    kept = [memory for memory in memories.values() if memory]
    return all(kept.count(memories[id(t)]) <= 1 for t in written)

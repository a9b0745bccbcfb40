"""The difference between two tensors, to the last bit."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foretrace.operators.abstract_tensors.subclass_types import wrapping_now


@dataclass(frozen=True, slots=True)
class Sight:
    """A tensor at one moment: facts about it, and a copy of its elements."""

    facts: dict[str, object]
    elements: Tensor
    inner: tuple["Sight", ...] = ()
    """of a wrapper subclass: the inner tensors"""

    @classmethod
    def of(cls, tensor: Tensor) -> "Sight":
        """The tensor now."""
        if (wrapping := wrapping_now(tensor)) is not None:
            facts: dict[str, object] = {
                "class": str(wrapping),
                "metadata": wrapping.context,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "requires_grad": tensor.requires_grad,
            }
            inner = tuple(cls.of(getattr(tensor, name)) for name in wrapping.names)
            return cls(facts, torch.empty(0), inner)
        strided = tensor.layout == torch.strided
        facts = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()) if strided else None,
            "device": tensor.device,
            "layout": tensor.layout,
            "requires_grad": tensor.requires_grad,
        }
        plain = tensor.detach() if strided else tensor.detach().to_dense()
        plain = plain.resolve_conj().resolve_neg()
        return cls(facts, plain.clone(memory_format=torch.contiguous_format))


def sight_of(leaf: Any) -> Any:
    """The Sight of a tensor; any other value itself."""
    return Sight.of(leaf) if isinstance(leaf, Tensor) else leaf


def difference(eager: Any, ours: Any, ignore: tuple[str, ...] = ()) -> str:
    """The difference in words; empty if there is none. -0.0 is not 0.0, and NaNs have payloads.

    Args:
        eager: a Sight, or any value that is no tensor.
        ours: likewise.
        ignore: facts that may differ.
    """
    if not (isinstance(eager, Sight) and isinstance(ours, Sight)):
        return _plain_difference(eager, ours)
    for name, fact in eager.facts.items():
        if name not in ignore and fact != ours.facts.get(name):
            return f"{name} is {fact} in eager, {ours.facts.get(name)} in the cut"
    if len(eager.inner) != len(ours.inner):
        return f"{len(eager.inner)} tensors are held in eager, {len(ours.inner)} in the cut"
    for one, other in zip(eager.inner, ours.inner, strict=True):
        if found := difference(one, other, ignore):
            return found
    return _elements_difference(eager.elements, ours.elements)


def _plain_difference(eager: Any, ours: Any) -> str:
    if isinstance(eager, Sight) or isinstance(ours, Sight) or type(eager) is not type(ours):
        return f"{_kind(eager)} in eager, {_kind(ours)} in the cut"
    same = repr(eager) == repr(ours) if isinstance(eager, float | complex) else eager == ours
    return "" if eager is ours or same else f"{eager!r} in eager, {ours!r} in the cut"


def _kind(item: Any) -> str:
    if isinstance(item, Sight):
        return "a tensor"
    return "None" if item is None else f"{type(item).__name__} {item!r}"


def _elements_difference(eager: Tensor, ours: Tensor) -> str:
    patterns, others = _patterns(eager), _patterns(ours)
    if torch.equal(patterns, others):
        return ""
    wrong = (patterns != others).any(-1)
    first = int(wrong.nonzero()[0])
    place = [int(i) for i in torch.unravel_index(torch.tensor(first), eager.shape)]
    left, right = eager.flatten()[first].item(), ours.flatten()[first].item()
    values = f"{left!r} in eager, {right!r} in the cut"
    if repr(left) == repr(right):
        values = f"{left!r} in both, of other bits"
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {place}: {values}"


def _patterns(tensor: Tensor) -> Tensor:
    """One row of bytes for each element."""
    return tensor.reshape(-1, 1).view(torch.uint8)

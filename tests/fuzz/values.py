"""What is kept of a tensor that was seen, and what differs between two of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.support.bits import bits


@dataclass(frozen=True)
class Look:
    """A tensor as it was at one moment."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    is_leaf: bool
    conj: bool
    neg: bool
    cls: type
    bits: Tensor


CLOSE = "close"
"""how values differ that are the same but for the last bits"""
FACTS = ("dtype", "shape", "cls")
"""of every tensor, in this order: the first that differs is told"""
LAYOUT = ("stride", "conj", "neg")
HISTORY = ("requires_grad", "is_leaf")


def look(tensor: Tensor) -> Look:
    """Take note of a tensor; later writes to it change nothing."""
    return Look(
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        requires_grad=tensor.requires_grad,
        is_leaf=tensor.is_leaf,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        cls=type(tensor),
        bits=bits(tensor).clone(),
    )


def unlike(left: object, right: object, facts: tuple[str, ...]) -> Iterator[str]:
    """What differs between two leaves; `facts` are compared beside the type and the values."""
    if not isinstance(left, Look) or not isinstance(right, Look):
        if type(left) is not type(right) or not (left == right or left != left):  # noqa: PLR0124
            yield f"{_short(left)} in eager, {_short(right)} here"
        return
    wrong = [name for name in (*FACTS, *facts) if getattr(left, name) != getattr(right, name)]
    for name in wrong:
        yield f"{name} is {getattr(left, name)} in eager, {getattr(right, name)} here"
    if not {"dtype", "shape"} & set(wrong) and not torch.equal(left.bits, right.bits):
        count = int((left.bits != right.bits).sum())
        how = CLOSE if _close(left, right) else "values"
        yield f"{how}: {count} of {left.bits.numel()} elements differ"


def _close(left: Look, right: Look) -> bool:
    """Whether only the last bits differ: within what `torch.testing.assert_close` allows."""
    if not (left.dtype.is_floating_point or left.dtype.is_complex):
        return False
    one, two = (each.bits.view(each.dtype.to_real()) for each in (left, right))
    try:
        torch.testing.assert_close(one, two, equal_nan=True)
    except AssertionError:
        return False
    return True


def _short(value: object) -> str:
    return "a tensor" if isinstance(value, Look) else f"{value!r:.40}"

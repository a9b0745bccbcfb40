"""A gradient is added to the `.grad` of a leaf, as torch's AccumulateGrad node does it.

Source: AccumulateGrad::accumulateGrad in torch/csrc/autograd/functions/accumulate_grad.h, and
torch/csrc/autograd/utils/grad_layout_contract.h.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value


class Leaves(Protocol):
    """The tensors of a run that gradients are accumulated in.

    `session/run/grad_accumulators.py` has them.
    """

    watched: bool
    """whether hooks of the caller's see what autograd saves"""

    def of(self, value: Value) -> Any:
        """The leaf that has a value, or had it before writes that autograd does not see.

        None for what is no leaf.

        Raises:
            Refusal: what it is the gradient of has a history outside of the program.
        """

    def hooks(self, value: Value) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """The tensor itself, and the hooks that it had before the program.

        These are those on its gradient, and those after a gradient is accumulated.
        """

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""

    def has_hooks(self) -> bool:
        """Whether a hook from before sees gradients."""

    def begins(self, value: Value) -> bool:
        """Whether no op makes a value."""


def accumulate(
    leaf: Any, gradient: Any, types: tuple[TensorType, TensorType], *, again: bool, alone: bool
) -> None:
    """Add a gradient to the `.grad` of a leaf, unless it has ceased to require one.

    Args:
        leaf: the tensor.
        gradient: the sum of what arrived.
        types: of the leaf, and of the gradient.
        again: whether it may be differentiated once more.
        alone: whether nothing else refers to the gradient.
    """
    before = leaf.grad
    if not leaf.requires_grad:
        return
    if before is None:
        leaf.grad = (
            gradient if alone and obeys_contract(*types) else _laid_out(gradient, leaf, types[0])
        )
    elif again:
        leaf.grad = before + gradient
    else:
        before += gradient


def obeys_contract(leaf: TensorType, gradient: TensorType) -> bool:
    """Whether a gradient has the strides of its leaf, or contiguous ones if that has gaps."""
    if not leaf.dense:
        return gradient.contiguous().stride == gradient.stride
    sizes = zip(gradient.shape, gradient.stride, leaf.stride, strict=True)
    return all(own != 0 if size == 1 else own == wanted for size, own, wanted in sizes)


def _laid_out(gradient: Any, like: Any, leaf: TensorType) -> Any:
    """A copy with these strides; `like`: the leaf itself."""
    if not leaf.dense:
        return gradient.clone(memory_format=torch.contiguous_format)
    return gradient.new_empty_strided(like.size(), like.stride()).copy_(gradient)

"""Levels of torch.func transforms and of forward-mode AD."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

# The C bindings of functorch and of forward AD; each name is used in one function below.
from torch import _C

# The level of `torch.func.jvp`, and where those of dual numbers are left.
# Which level of dual numbers is on; there is no public way to ask.
from torch.autograd import forward_ad

from foretrace.torch_api.clean_room import plain_torch
from foretrace.torch_api.dispatch import functorch_active


def followed_by_level(tensor: torch.Tensor) -> bool:
    """Whether a level of `torch.func.grad` or its like, over or not, has a history of the tensor.

    What `torch.func.vjp` gives is called after its level: its tensors are still those of it.
    """
    while _C._functorch.is_batchedtensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return bool(_C._functorch.is_gradtrackingtensor(tensor))


# Whether a tensor is one of a level of `torch.func`, over or not, which holds another.
of_a_level: Callable[[torch.Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
# Whether a tensor is one of torch's first `vmap`, which `torch.autograd.functional` has.
of_old_vmap: Callable[[torch.Tensor], bool] = _C._functorch.is_legacy_batchedtensor
# Makes one of a tensor, as `_vmap` does (2.13).
add_batch_dim: Callable[..., torch.Tensor] = torch._add_batch_dim
# Makes the tensor of one again.
remove_batch_dim: Callable[..., torch.Tensor] = torch._remove_batch_dim


def first_vmap() -> Callable[..., Any]:
    """By which `torch.autograd.grad` maps its backward over a batch of gradients."""
    found: Callable[..., Any] = vars(torch._vmap_internals)["_vmap"]
    return found


@contextmanager
def first_vmap_level() -> Iterator[int]:
    """One more level of it is on, as `_vmap` enters one."""
    try:
        yield _C._vmapmode_increment_nesting()
    finally:
        _C._vmapmode_decrement_nesting()


# What it holds.
under_level: Callable[[torch.Tensor], torch.Tensor] = _C._functorch.get_unwrapped


def mapped_dim(tensor: torch.Tensor) -> int | None:
    """Over which dimension of what it holds `torch.vmap` maps; None if it is of another level."""
    dim: int = _C._functorch.maybe_get_bdim(tensor)
    return dim if _C._functorch.is_batchedtensor(tensor) else None


# How many transforms of `torch.func` are running.
levels: Callable[[], int] = _C._functorch.get_dynamic_layer_stack_depth


def leave_levels(count: int) -> None:
    """Leave transforms that were entered and never left, until `count` are left."""
    _C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(count)


def dual_level() -> int:
    """The level of `torch.autograd.forward_ad` that is on; -1 if none is."""
    level: int = forward_ad._current_level
    return level


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the caller's is a dual number of the level that is on."""
    if dual_level() < 0:
        return False
    with plain_torch():
        return torch._unpack_dual(tensor, level=dual_level())[1] is not None


def transformed() -> bool:
    """Whether a transform of `torch.func`, or a level of dual numbers, is on."""
    return functorch_active() or dual_level() >= 0


def leave_dual_levels(level: int) -> None:
    """Leave levels of it that were entered and never left, until this one is on."""
    while dual_level() > level:
        forward_ad.exit_dual_level()

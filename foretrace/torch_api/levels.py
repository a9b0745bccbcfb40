"""Levels of torch.func transforms and of forward-mode AD."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

# The C bindings of functorch and of forward AD; each name is used in one function below.
from torch import _C

# The level of `torch.func.jvp`, and where those of dual numbers are left.
from torch._functorch import eager_transforms, predispatch

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


# What `forward_ad.exit_dual_level` calls.
leave_dual_level: Callable[..., None] = predispatch._exit_dual_level


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


# Whether operators compute the tangents of what they give (`forward_ad._set_fwd_grad_enabled`).
forward_mode: Callable[[], bool] = _C._is_fwd_grad_enabled


class forward_level:  # noqa: N801 - used as a context manager
    """Inside, autograd's forward mode runs above the modes that see operators.

    It is the level of `torch.func.jvp`, which needs one of `forward_ad` around it.
    """

    def __enter__(self) -> Self:
        self._around: Any = eager_transforms.jvp_increment_nesting()
        self.level = self._around.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._around.__exit__(*error)

    def dual(self, tensor: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
        """The tensor with a tangent."""
        return torch._make_dual(tensor, tangent, level=0)

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor without one, which an operator may write to: it has one then."""
        return _C._functorch._wrap_for_grad(tensor, self.level)

    def parts(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The tensor below one that was computed inside, and its tangent."""
        unwrap = _C._functorch._unwrap_for_grad
        tangent: Any = torch._unpack_dual(tensor, level=0)[1]
        return unwrap(tensor, self.level), None if tangent is None else unwrap(tangent, self.level)


class no_level:  # noqa: N801 - as the other
    """The same without a level: as in a plain program inside one of `forward_ad`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def dual(self, tensor: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
        """The tensor with a tangent."""
        return torch._make_dual(tensor, tangent, level=0)

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return tensor

    def parts(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A tensor without its tangent, and that."""
        primal, tangent = torch._unpack_dual(tensor, level=0)
        return primal, tangent


def forward_mode_of(level: bool) -> forward_level | no_level:
    """Forward mode inside a level of `forward_ad`: in a level above, or plainly."""
    return forward_level() if level else no_level()

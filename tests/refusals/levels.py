"""Refused of levels of torch.func, and of dual numbers."""

from typing import Any

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.func import jvp, vmap
from torch.utils.checkpoint import checkpoint

import foretrace
from tests.refusals.registry import captured, captures, refuses

X = torch.randn(3, 4)
W = torch.randn(3, 4, requires_grad=True)


def pushed(function: Any, x: Tensor) -> Any:
    return jvp(function, (x,), (x,))


def linearized(x: Tensor) -> Any:
    return torch.func.linearize(torch.sin, x)[1](x)  # here


refuses(
    "unsupported", "recording/torch_state.py:_not_traced", captures(linearized, X), linearized,
    captured(lambda x: pushed(torch.sin, x), X), "outside of the program",
)  # fmt: skip


def mapped_by_the_old_vmap(x: Tensor) -> Any:
    return jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")  # here


refuses(
    "unsupported", "tensors/admitted.py:check_asked_for", captures(mapped_by_the_old_vmap, X),
    mapped_by_the_old_vmap, captured(torch.func.jacfwd(torch.sin), X),
    captured(vmap(torch.sin), X),
)  # fmt: skip


def norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (4,))


def norm_of_a_dual(x: Tensor) -> Any:
    with fwad.dual_level():
        y = fwad.make_dual(x, x)
        return fwad.unpack_dual(torch.nn.functional.layer_norm(y, (4,))).tangent  # here


refuses(
    "unsupported", "duals/plain.py:check_plain", captures(norm_of_a_dual, X), norm_of_a_dual,
    captured(lambda x: pushed(norm, x), X),
)  # fmt: skip


def product(x: Tensor) -> Tensor:
    return x @ torch.ones(4, 4)


def dual_under_autocast(x: Tensor) -> Any:
    with fwad.dual_level(), torch.autocast("cpu"):
        y = fwad.make_dual(x, x) @ torch.ones(4, 4)  # here
        return fwad.unpack_dual(y).tangent


def jvp_under_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu"):
        return pushed(product, x)


def dual_beside_autocast(x: Tensor) -> Any:
    with fwad.dual_level():
        return fwad.unpack_dual(fwad.make_dual(x, x) @ torch.ones(4, 4)).tangent


refuses(
    "autocast", "duals/numbers.py:_check", captures(dual_under_autocast, X), dual_under_autocast,
    captured(jvp_under_autocast, X), captured(dual_beside_autocast, X),
)  # fmt: skip


def twice_exp(x: Tensor) -> Tensor:
    return (x * 2).exp()


def dual_in_a_checkpoint(x: Tensor) -> Any:
    def again(y: Tensor) -> Tensor:
        return (y * 2).exp()  # here

    with fwad.dual_level():
        return fwad.unpack_dual(checkpoint(again, fwad.make_dual(x, x), use_reentrant=False))[1]


def dual_without_one(x: Tensor) -> Any:
    with fwad.dual_level():
        return fwad.unpack_dual(twice_exp(fwad.make_dual(x, x))).tangent


refuses(
    "unsupported", "duals/numbers.py:_check", captures(dual_in_a_checkpoint, W), None,
    captured(dual_without_one, W), captured(lambda x: pushed(twice_exp, x), W),
)  # fmt: skip


def branches_on_a_dual(x: Tensor) -> Any:
    with fwad.dual_level():
        y = fwad.make_dual(x, x)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (y,))  # here


refuses(
    "higher-order operator", "duals/numbers.py:_check", captures(branches_on_a_dual, X),
    branches_on_a_dual, captured(lambda x: pushed(torch.sin, x), X),
)  # fmt: skip


def written_beside_views(x: Tensor) -> Any:
    with fwad.dual_level():
        y = torch.zeros(3, 4)
        row = y[0]
        row.add_(fwad.make_dual(x, x)[0])  # here
        return fwad.unpack_dual(y).tangent


def written_to_a_dual(x: Tensor) -> Any:
    with fwad.dual_level():
        y = fwad.make_dual(torch.zeros(3, 4), torch.zeros(3, 4))
        y[0].add_(fwad.make_dual(x, x)[0])
        return fwad.unpack_dual(y).tangent


def put_together(x: Tensor) -> Any:
    with fwad.dual_level():
        y = torch.cat([fwad.make_dual(x, x)[:1], torch.zeros(2, 4)])
        return fwad.unpack_dual(y).tangent


refuses(
    "unsupported", "duals/numbers.py:_check_alone", captures(written_beside_views, X),
    written_beside_views, captured(written_to_a_dual, X), captured(put_together, X),
)  # fmt: skip


class Doubled(torch.autograd.Function):
    """One with a rule for forward mode."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 2


def function_of_a_dual(x: Tensor) -> Any:
    with fwad.dual_level():
        return fwad.unpack_dual(Doubled.apply(fwad.make_dual(x, x))).tangent  # here


refuses(
    "unsupported", "trace/functions.py:_refuse", captures(function_of_a_dual, X),
    function_of_a_dual, captured(lambda x: pushed(Doubled.apply, x), X),
)  # fmt: skip


def given_a_dual() -> object:
    with fwad.dual_level():
        return foretrace.capture(torch.sin, (fwad.make_dual(X, X),))


refuses(
    "unsupported tensor", "tensors/admitted.py:check_admitted", given_a_dual, None,
    captured(dual_without_one, X),
)  # fmt: skip


def captured_in_a_level() -> object:
    return vmap(lambda x: foretrace.capture(torch.sin, (x,)))(X)


refuses(
    "unsupported tensor", "tensors/admitted.py:check_admitted", captured_in_a_level, None,
    captured(vmap(twice_exp), X),
)  # fmt: skip


def joint_of_a_dual() -> object:
    cut = foretrace.capture(twice_exp, (W,)).cut("joint", loss=None)
    with fwad.dual_level():
        return cut(fwad.make_dual(W.detach(), X).requires_grad_(), tangents=[X])


refuses(
    "guard broken", "runtime/calls.py:check_unhooked", joint_of_a_dual, None,
    "another cut, which tests/against_eager/test_levels.py calls",
)  # fmt: skip

"""Refused of levels of torch.func, and of dual numbers."""

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.func import jvp, linearize, vmap

import foretrace
from foretrace import torch_api
from tests.refusals.asks import captures
from tests.refusals.follow import captured, same
from tests.refusals.registry import refuses

X = torch.randn(3, 4)
W = torch.randn(3, 4, requires_grad=True)


def pushed(function: Any, x: Tensor) -> Any:
    return jvp(function, (x,), (x,))


def linearized(x: Tensor) -> Any:
    return linearize(torch.sin, x)[1](x)  # here


refuses("unsupported", "session/patches/torch_patches.py:_linearized").when(
    captures(linearized, X),
    captured(lambda x: pushed(torch.sin, x), X),
    "outside of the captured program",
)


def mapped_by_the_old_vmap(x: Tensor) -> Any:
    return jacobian(torch.sin, x, vectorize=True, strategy="forward-mode")  # here


refuses("unsupported", "operators/abstract_tensors/supported_inputs.py:check_asked_for").when(
    captures(mapped_by_the_old_vmap, X),
    captured(torch.func.jacfwd(torch.sin), X),
    captured(vmap(torch.sin), X),
)


def product(x: Tensor) -> Tensor:
    return x @ torch.ones(4, 4)


def dual_inside(x: Tensor) -> Any:
    with fwad.dual_level():
        return fwad.unpack_dual(product(fwad.make_dual(x, x))).tangent  # here


refuses("unsupported", "tracer/forward_ad/jvp_queries.py:refuse_dual").when(
    captures(dual_inside, X), captured(lambda x: pushed(product, x), X)
)


def twice_exp(x: Tensor) -> Tensor:
    return (x * 2).exp()


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


def given_a_dual() -> object:
    with fwad.dual_level():
        return foretrace.capture(torch.sin, (fwad.make_dual(X, X),))


def tangents_of(function: Any, x: Tensor) -> list[Any]:
    """Of its results, for one of its argument; both are the caller's."""
    with fwad.dual_level():
        made = torch_api.tree_leaves(function(fwad.make_dual(x.clone(), X.clone())))
        return [tuple(fwad.unpack_dual(each)) for each in made]


def pushed_by_the_caller(function: Any, called: Any, x: Tensor) -> Callable[[], None]:
    """What `called` makes of the function computes with tangents as it does."""
    return lambda: same(tangents_of(called(function, x), x), tangents_of(function, x))


def cut_of(kind: str) -> Callable[[Any, Tensor], Any]:
    return lambda function, x: foretrace.capture(function, (x,)).cut(kind)


def compiled_whole(function: Any, x: Tensor) -> Any:
    return foretrace.compile(function, fullgraph=True)


def itself(function: Any, x: Tensor) -> Any:
    return function


refuses("unsupported tensor", "operators/abstract_tensors/supported_inputs.py:check_admitted").when(
    given_a_dual,
    captured(lambda x: pushed(twice_exp, x), X),
    pushed_by_the_caller(twice_exp, cut_of("export"), X),
    pushed_by_the_caller(twice_exp, compiled_whole, X),
    at=None,
)


def without_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y.exp() + x


refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    lambda: tangents_of(cut_of("export")(without_grad, W), W),
    pushed_by_the_caller(without_grad, itself, W),
    pushed_by_the_caller(without_grad, compiled_whole, W),
    at=None,
)


def written_through_detach(x: Tensor) -> Tensor:
    y = x * 2
    y.detach().mul_(x)
    return y * x


refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    lambda: tangents_of(cut_of("export")(written_through_detach, X), X),
    pushed_by_the_caller(written_through_detach, itself, X),
    pushed_by_the_caller(written_through_detach, compiled_whole, X),
    at=None,
)


def written_and_returned(x: Tensor) -> Tensor:
    x.mul_(2)
    return x[0]


refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    lambda: tangents_of(cut_of("export")(written_and_returned, X.clone()), X),
    pushed_by_the_caller(written_and_returned, itself, X),
    pushed_by_the_caller(written_and_returned, compiled_whole, X),
    at=None,
)
refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    lambda: tangents_of(cut_of("aten")(Doubled.apply, X), X),
    pushed_by_the_caller(Doubled.apply, itself, X),
    pushed_by_the_caller(Doubled.apply, cut_of("export"), X),
    at=None,
)
refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    lambda: tangents_of(cut_of("step")(twice_exp, X), X),
    pushed_by_the_caller(twice_exp, itself, X),
    pushed_by_the_caller(twice_exp, cut_of("export"), X),
    at=None,
)


def asks_for_a_tangent(x: Tensor) -> Any:
    return fwad.unpack_dual(x).tangent  # here


def in_a_level_around() -> object:
    with fwad.dual_level():
        return foretrace.capture(asks_for_a_tangent, (X,))


refuses("unsupported", "tracer/forward_ad/jvp_queries.py:refuse_dual").when(
    in_a_level_around, captured(lambda x: pushed(twice_exp, x), X), at=asks_for_a_tangent
)


def captured_in_a_level() -> object:
    return vmap(lambda x: foretrace.capture(torch.sin, (x,)))(X)


refuses("unsupported tensor", "operators/abstract_tensors/supported_inputs.py:check_admitted").when(
    captured_in_a_level, captured(vmap(twice_exp), X), at=None
)


def joint_of_a_dual() -> object:
    cut = foretrace.capture(twice_exp, (W,)).cut("joint", loss=None)
    with fwad.dual_level():
        return cut(fwad.make_dual(W.detach(), X).requires_grad_(), tangents=[X])


refuses("guard broken", "runtime/calls/dual_inputs.py:_refused").when(
    joint_of_a_dual,
    pushed_by_the_caller(twice_exp, itself, W),
    pushed_by_the_caller(twice_exp, cut_of("export"), W),
    at=None,
)

"""Hooks on what autograd saves: where no graph can have them, and what they may not do."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import foretrace
from tests.refusals.asks import captures, cuts, exports
from tests.refusals.follow import captured, compiled, trained
from tests.refusals.registry import refuses

W = torch.randn(6, 8, requires_grad=True)
SQUARE = torch.randn(4, 4, requires_grad=True)


def halved() -> saved_tensors_hooks:
    return saved_tensors_hooks(Tensor.bfloat16, Tensor.float)


def product(w: Tensor) -> Tensor:
    return (w.exp() * w).sum()


def of_a_function(w: Tensor) -> Tensor:
    with halved():
        return product(w)


# ---- where ---------------------------------------------------------------------------------------


def inside_a_checkpoint(w: Tensor) -> Any:
    def hooked(w: Tensor) -> Tensor:
        with halved():  # here
            return product(w)

    return checkpoint(hooked, w, use_reentrant=False)


refuses("hook", "autograd/backward/pack_hooks.py:enter").when(
    captures(inside_a_checkpoint, W), trained(of_a_function, W)
)


def around_a_checkpoint(w: Tensor) -> Any:
    with halved():
        return checkpoint(product, w, use_reentrant=False)  # here


def beside_a_checkpoint(w: Tensor) -> Any:
    with halved():
        y = w.sin()
    return checkpoint(product, y, use_reentrant=False)


refuses("hook", "autograd/backward/pack_hooks.py:check_checkpoint").when(
    captures(around_a_checkpoint, W), trained(beside_a_checkpoint, W)
)


def holds_programs(w: Tensor) -> Any:
    with halved():
        y = torch.cond(w.sum() > 0, torch.sin, torch.neg, (w,))  # here
        return y.sum()


def holds_none(w: Tensor) -> Any:
    y = torch.cond(w.sum() > 0, torch.sin, torch.neg, (w,))
    with halved():
        return product(y)


refuses("hook", "autograd/derivatives/saved_tensors.py:unknown").when(
    captures(holds_programs, W), trained(holds_none, W)
)


def slope_around(w: Tensor) -> Tensor:
    return torch.autograd.grad(product(w), w)[0]  # here


def under_hooks() -> None:
    cut = foretrace.capture(slope_around, (W,)).cut("aten")
    with halved():
        cut(W)


refuses("guard broken", "runtime/guards/cut_guards.py:broken").when(
    under_hooks, lambda: [captured(slope_around, W)(), compiled(slope_around, W)()], at=None
)


def captured_under_hooks() -> None:
    with halved():
        foretrace.capture(slope_around, (W,))


def slope_of_a_function(w: Tensor) -> Tensor:
    return torch.autograd.grad(of_a_function(w), w)[0]


refuses("autograd inside", "autograd/backward/in_program_engine.py:_refused").when(
    captured_under_hooks,
    lambda: [captured(slope_of_a_function, W)(), captured(slope_around, W)()],
    at=slope_around,
)


def saves_half(w: Tensor) -> Tensor:
    with halved():  # here
        return product(w)


def saves_on_cpu(w: Tensor) -> Tensor:
    with save_on_cpu():
        return product(w)


def runs_again(w: Tensor) -> Any:
    return checkpoint(product, w, use_reentrant=False)


refuses("hook", "frontends/torch_compat/stateless_check.py:without_hooks").when(
    exports(saves_half, W),
    lambda: [trained(runs_again, W)(), trained(saves_on_cpu, W)()],
    trained(saves_half, W),
)


def trains_a_cut() -> None:
    foretrace.capture(saves_half, (W,)).cut("export")(W).backward()


refuses("hook", "runtime/calls/untrainable_results.py:_opened").when(
    trains_a_cut, trained(saves_half, W), compiled(saves_half, W), at=saves_half
)


# ---- what they do --------------------------------------------------------------------------------


def packs_in_place(w: Tensor) -> Tensor:
    y = w * 1
    with saved_tensors_hooks(lambda t: t.detach().mul_(2), lambda t: t):
        return y.exp().sum()  # here


def packs_a_clone(w: Tensor) -> Tensor:
    y = w * 1
    with saved_tensors_hooks(lambda t: t.detach().clone().mul_(2), lambda t: t):
        return y.exp().sum()


refuses("program raised", "autograd/backward/pack_hooks.py:pack").when(
    captures(packs_in_place, W), trained(packs_a_clone, W)
)


def packs_into_an_operand(w: Tensor) -> Tensor:
    y = w.detach() * 1

    def pack(t: Tensor) -> Tensor:
        y.add_(1)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        return torch.addcmul(y, w, w).sum()  # here


def packs_into_a_clone(w: Tensor) -> Tensor:
    y = w.detach() * 1

    def pack(t: Tensor) -> Tensor:
        y.clone().add_(1)
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        return torch.addcmul(y, w, w).sum()


refuses("hook", "autograd/backward/pack_hooks.py:_writes").when(
    captures(packs_into_an_operand, W), trained(packs_into_a_clone, W)
)


def noisy() -> saved_tensors_hooks:
    return saved_tensors_hooks(lambda t: t + torch.rand_like(t), lambda t: t)


def draws_in_between(w: Tensor) -> Tensor:
    q = w[None, None]
    with noisy():
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).sum()  # here


def draws_in_parts(w: Tensor) -> Tensor:
    with noisy():
        return (F.dropout((w @ w.t()).softmax(1), 0.5) @ w).sum()


def draws_nothing(w: Tensor) -> Tensor:
    q = w[None, None]
    with saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return F.scaled_dot_product_attention(q, q, q).sum()


refuses("hook", "autograd/backward/pack_hooks.py:_check_draws").when(
    captures(draws_in_between, W), trained(draws_nothing, W), trained(draws_in_parts, W)
)


def unpacks_in_place(w: Tensor) -> Tensor:
    with saved_tensors_hooks(torch.clone, lambda t: t.mul_(2)):  # here
        return product(w)


def unpacks_a_clone(w: Tensor) -> Tensor:
    with saved_tensors_hooks(torch.clone, lambda t: t.clone().mul_(2)):
        return product(w)


refuses("hook", "autograd/backward/unpack_hooks.py:_check_unwritten").when(
    cuts(unpacks_in_place, W, loss=0), trained(unpacks_a_clone, W)
)


def unpacks_nothing(w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, lambda t: None):  # type: ignore[arg-type, return-value]  # here
        return product(w)


refuses("wrong hook", "tracer/recorder/autograd_hooks.py:taken_out").when(
    cuts(unpacks_nothing, W, loss=0), trained(of_a_function, W)
)


def unpacks_another_shape(w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t, torch.flatten):
        return (w @ w).exp().sum()  # here


def unpacks_the_same_shape(w: Tensor) -> Tensor:
    with saved_tensors_hooks(torch.flatten, lambda t: t.view(4, 4)):
        return (w @ w).exp().sum()


refuses("wrong hook", "autograd/derivatives/saved_tensors.py:_unfit").when(
    cuts(unpacks_another_shape, SQUARE, loss=0), trained(unpacks_the_same_shape, SQUARE)
)


def another_layout_again(w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.t().contiguous(), Tensor.t):
        y = product(w)
    return torch.autograd.grad(y, w, create_graph=True)[0].exp().sum()  # here


def the_same_layout_again(w: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda t: t.t().contiguous(), lambda t: t.t().contiguous()):
        y = product(w)
    return torch.autograd.grad(y, w, create_graph=True)[0].exp().sum()


refuses("hook", "autograd/backward/unpack_hooks.py:other_layout").when(
    captures(another_layout_again, W), trained(the_same_layout_again, W)
)

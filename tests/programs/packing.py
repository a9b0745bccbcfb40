"""Hooks on what autograd saves: what they make of it, where, and of which operators."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import grad
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

from tests.programs.registry import N, built, program, t

HOLDS = "a forward cut has no hook on what autograd saves"  # its sizes do not vary


def halved() -> saved_tensors_hooks:
    """Keeps floating numbers in half the bits."""
    return saved_tensors_hooks(
        lambda x: x.bfloat16() if x.is_floating_point() else x,
        lambda x: x.float() if x.dtype is torch.bfloat16 else x,
    )


def changed() -> saved_tensors_hooks:
    """Gives back something else, so that a hook that is forgotten is seen."""
    return saved_tensors_hooks(lambda x: x * 2, lambda x: x + 1)


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def saved_in_half_the_bits(x: Tensor) -> Tensor:
    with halved():
        return x.exp().sum()


@program(t(3, 4), t(4, 4), loss=0, may_refuse=HOLDS)
def saved_by_several_ops(x: Tensor, w: Tensor) -> Tensor:
    with halved():
        y = (x @ w).tanh() * x
    return (y * y).sum()


@program(t(3, 4), t(3), may_refuse=HOLDS)
def saved_by_ops_apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with changed():
        return x.exp(), w.sin()


@program(t(3, 4), t(5, 4), t(5), loss=0, may_refuse=HOLDS)
def saved_by_composites(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    with halved():
        y = F.gelu(F.linear(x, w, b))
        z = F.layer_norm(y, (5,), b, b)
    return F.log_softmax(z, 1).square().sum()


@program(t(2, 4, 5, 8), t(2, 4, 5, 8), t(2, 4, 5, 8), loss=0, may_refuse=HOLDS)
def saved_by_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with halved():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin().sum()


@program(t(2, 3, 8, 8), t(4, 3, 3, 3), loss=0, may_refuse=HOLDS)
def saved_by_convolutions(x: Tensor, w: Tensor) -> Tensor:
    with halved():
        y = F.batch_norm(F.conv2d(x, w), None, None, training=True)
        return F.max_pool2d(y.relu(), 2).square().sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def saved_indices(x: Tensor) -> Tensor:
    with halved():
        y = x.gather(1, torch.tensor([[0], [1]]))
        return y.sum() + F.cross_entropy(x[torch.tensor([0, 2, 1])], torch.tensor([0, 1, 2]))


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hooks_inside_hooks(x: Tensor) -> Tensor:
    with changed():
        a = x.exp()
        with saved_tensors_hooks(lambda x: x - 1, lambda x: x / 2):
            b = a.sin()
        c = b * a
    return (c * c).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def the_same_hooks_inside(x: Tensor) -> Tensor:
    hooks = changed()
    with hooks:
        y = x.exp()
        with hooks:
            z = y * y
        return (z * x).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def kept_in_a_list(x: Tensor) -> Tensor:
    kept = []

    def pack(x: Tensor) -> int:
        kept.append(x.detach() * 3)
        return len(kept) - 1

    with saved_tensors_hooks(pack, lambda place: kept[place] * 0.5):
        y = x.exp() * x
    return y.sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def quantized(x: Tensor) -> Tensor:
    def pack(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.detach().abs().max() / 127
        return (x / scale).round().to(torch.int8), scale

    with saved_tensors_hooks(pack, lambda both: both[0].float() * both[1]):
        return (x.sin() * x.exp()).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hooks_that_count(x: Tensor) -> Tensor:
    count = [0]

    def pack(x: Tensor) -> tuple[int, Tensor]:
        count[0] += 1
        return count[0], x

    with saved_tensors_hooks(pack, lambda both: both[1] * both[0]):
        y = (F.gelu(x @ x.t()) * F.layer_norm(x @ x.t(), (x.shape[0],))).softmax(1)
    return y.square().sum() * count[0]


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def saved_before_a_write(x: Tensor) -> Tensor:
    y = x * 2
    with saved_tensors_hooks(torch.clone, lambda x: x):
        z = y.sin()
    y.mul_(3)
    return (z * y).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def saved_and_written_to(x: Tensor) -> Tensor:
    """No version is compared: a backward reads what is there by then."""
    y = x * 2
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        z = y.sin()
    y.mul_(3)
    return (z * 2).sum() + y.sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def saved_by_writes(x: Tensor) -> Tensor:
    y = x * 2
    with changed():
        y.exp_()
        y.mul_(x)
        y[0].mul_(x[1])
        y[1].sin_()
    return y.sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def unpacked_and_written_to(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda x: x, lambda x: x.clone().mul_(2)):
        return (x.exp() * x).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def unpacked_in_another_layout(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda x: x.t().contiguous(), Tensor.t):
        return (x.exp() * x).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def unpacked_by_what_is_outside(x: Tensor) -> Tensor:
    scale = x.detach().mean()
    with saved_tensors_hooks(lambda x: x, lambda x: x * scale):
        return (x.exp() * x).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def packed_with_noise(x: Tensor) -> Tensor:
    with saved_tensors_hooks(lambda x: x + torch.rand_like(x), lambda x: x):
        return (F.dropout(x, 0.3) * x).sum()


class Product(torch.autograd.Function):
    """Saves both factors, and something that is no tensor in between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, None, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, _, w = ctx.saved_tensors
        return g * w, g * x


@program(t(3, 4), t(3, 4), loss=0, may_refuse=HOLDS)
def saved_by_a_function(x: Tensor, w: Tensor) -> Tensor:
    with changed():
        return Product.apply(x.sin(), w).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hooks_beside_a_hook(x: Tensor) -> Tensor:
    with changed():
        y = x.exp()
        y.register_hook(lambda g: g * 2)
        return (y * y).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hooks_of_ours_under_torchs(x: Tensor) -> Tensor:
    with changed(), save_on_cpu():
        y = x.exp() * x
    return (y * y).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hooks_that_are_not_allowed(x: Tensor) -> Tensor:
    try:
        with changed(), disable_saved_tensors_hooks("not here"):
            return x.exp().sum()
    except RuntimeError:
        return x.sin().sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def a_pack_that_raises(x: Tensor) -> Tensor:
    def pack(x: Tensor) -> Tensor:
        raise ValueError(x.shape)

    try:
        with saved_tensors_hooks(pack, lambda x: x):
            return (x * x).sum()
    except ValueError:
        return x.sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def nothing_saved_without_gradients(x: Tensor) -> Tensor:
    with changed():
        with torch.no_grad():
            m = x.exp()
        return (x.exp() * m).sum()


@built(t(3, 8), may_refuse=HOLDS)
def layers_under_hooks() -> nn.Module:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            with changed():
                y = self.attention(x[None], x[None], x[None])[0]
                h = self.first(y[0]).relu()
            return self.last(h)

    return Layers()


# ------------------------------------------------------------------------------ gradients inside


@program(t(N, 4))
def unpacked_inside(x: Tensor) -> Tensor:
    with changed():
        y = (x.exp() * x).sum()
    return grad(y, x)[0] + x


@program(t(N, 4))
def unpacked_twice_inside(x: Tensor) -> Tensor:
    count = [0]

    def unpack(x: Tensor) -> Tensor:
        count[0] += 1
        return x * count[0]

    with saved_tensors_hooks(lambda x: x, unpack):
        y = (x.exp() * x).sum()
    first = grad(y, x, retain_graph=True)[0]
    return first - grad(y, x)[0] + x


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def unpacked_and_differentiated(x: Tensor) -> Tensor:
    with changed():
        y = (x.exp() * x).sum()
    return grad(y, x, create_graph=True)[0].square().sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def a_backward_under_hooks(x: Tensor) -> Tensor:
    with changed():
        y = (x.exp() * x).sum()
        return grad(y, x, create_graph=True)[0].square().sum()


@program(t(3, 4), t(3, 4), loss=0, may_refuse=HOLDS)
def a_function_differentiated_under_hooks(x: Tensor, w: Tensor) -> Tensor:
    with changed():
        y = Product.apply(x, w).exp().sum()
    return grad(y, x, create_graph=True)[0].square().sum()


@program(t(N, 4))
def a_leaf_made_under_hooks(x: Tensor) -> Tensor:
    with changed():
        y = x.detach().clone().requires_grad_()
        (g,) = grad((y.sin() * y).sum(), y)
    return x * g


@program(t(N, 4))
def unpacked_in_place(x: Tensor) -> Tensor:
    """One tensor is packed for two, and each time is twice what it was."""
    kept: dict[int, Tensor] = {}

    def pack(x: Tensor) -> Tensor:
        return kept.setdefault(x.dim(), x.detach().clone())

    with saved_tensors_hooks(pack, lambda x: x.mul_(2)):
        y = (x.exp() * x).sum()
    return grad(y, x)[0] + x

"""Batches of gradients at once: torch's first vmap over formulas."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad
from torch.autograd.functional import hessian, jacobian

from tests.programs.registry import Make, program, t


def summed(y: Tensor, *by: Tensor, count: int = 3, **options: Any) -> Tensor:
    """Gradients for several tangents at once, each weighed."""
    tangents = torch.linspace(-1, 1, count * y.numel()).view(count, *y.shape)
    found = grad(y, by, tangents, is_grads_batched=True, allow_unused=True, **options)
    weights = (torch.linspace(0, 1, g.numel()).view(g.shape) for g in found if g is not None)
    there = (g for g in found if g is not None)
    return torch.stack([(g * w).sum() for g, w in zip(there, weights, strict=True)]).sum()


def written(x: Tensor) -> Tensor:
    y = x * 2
    y.mul_(x.exp())
    return y.sin_() * 1


def reduced(x: Tensor) -> Tensor:
    return x.std(1) + x.norm(dim=1) + x.logsumexp(1) + x.prod(1) + x.amax(1)


X, W = t(4, 3), t(5, 3)
OF: dict[str, tuple[Callable[..., Tensor], tuple[Make, ...]]] = {
    "pointwise": (lambda x: x.sin() * x + x, (X,)),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (X, W, t(5))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3,), w, b), (X, t(3), t(3))),
    "softmax": (lambda x: x.log_softmax(1), (X,)),
    "views": (lambda x: x.t()[1:].reshape(-1).expand(2, 8).cumsum(1), (X,)),
    "indexed": (lambda x: x[torch.tensor([0, 2])].gather(1, torch.tensor([[0], [1]])), (X,)),
    "convolved": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w).relu(), 2), (t(2, 3, 6, 6), t(4, 3, 3, 3)),
    ),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (X,)),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), (t(2, 2, 4, 3),)),
    "written": (written, (X,)),
    "reduced": (reduced, (X,)),
    "multiplied": (lambda x: x.prod(1) + x.prod() + x.max(), (X,)),
    "multiplied_with_zeros": (lambda x: x.relu().prod(1) + (x * 0).prod() + x[:, 0].prod(), (X,)),
    "inverted": (lambda x: torch.linalg.inv(x @ x.t() + torch.eye(3)), (t(3, 3),)),
    "embedded": (lambda w: F.embedding(torch.tensor([0, 2, 1]), w), (X,)),
    "not_used": (lambda x, w: x.exp(), (X, W)),
}  # fmt: skip


ONCE = ("attention", "reduced", "multiplied", "multiplied_with_zeros")
"""What has no second derivative, in eager or here (std), or not to the last bit (prod)"""


def _programs(name: str) -> None:
    of, inputs = OF[name]

    def once(*args: Tensor) -> Tensor:
        return summed(of(*args), *args) * args[0].sum()

    def differentiated(*args: Tensor) -> Tensor:
        return summed(of(*args), *args, create_graph=True) + args[0].sum()

    both = (once, "a_batch"), (differentiated, "a_batch_differentiated")
    for fn, what in both[:1] if name in ONCE else both:
        fn.__name__ = f"{what}_of_{name}"
        program(*inputs, loss=0)(fn)


for _name in OF:
    _programs(_name)


@program(t(4), loss=0)
def a_hessian_in_one_batch(x: Tensor) -> Tensor:
    (g,) = grad((x.exp() * x.flip(0)).sum(), x, create_graph=True)
    (h,) = grad(g, x, torch.eye(4), is_grads_batched=True, create_graph=True)
    return (h * h).sum()


@program(t(4, 3), t(4, 3), loss=0)
def a_batch_of_tangents_that_are_differentiated(x: Tensor, w: Tensor) -> Tensor:
    both = torch.stack([w, w.exp()])
    return grad(x.sin(), x, both, is_grads_batched=True, create_graph=True)[0].square().sum()


@program(t(4, 3), t(4, 3), loss=0)
def a_batch_that_a_sum_gives_on(x: Tensor, w: Tensor) -> Tensor:
    found = grad(x + w, (x, w), torch.ones(3, 4, 3), is_grads_batched=True)
    return (found[0] * found[1]).sum() * x.sum()


@program(t(4, 3), loss=0)
def a_jacobian_by_torchs_functional(x: Tensor) -> Tensor:
    of = jacobian(lambda x: (x.sin() @ x.t()).sum(0), x, vectorize=True)
    assert isinstance(of, Tensor)
    return of.sum() * x.sum()


@program(t(4), loss=0)
def a_hessian_by_torchs_functional(x: Tensor) -> Tensor:
    of = hessian(lambda x: x.exp() @ x, x, vectorize=True, create_graph=True)
    assert isinstance(of, Tensor)
    return of.square().sum()

"""Gradient edges, hooks for several gradients, and hooks that are removed before the end."""

import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

from tests.programs.registry import N, program, t


@program(t(N, 4), t(4))
def a_hook_for_two_gradients(x: Tensor, w: Tensor) -> Tensor:
    seen: list[Tensor] = []
    a, b = x * w, x.sin()
    register_multi_grad_hook((a, b), lambda grads: seen.extend(g * 2 for g in grads))
    g = grad((a * b).sum(), x, retain_graph=True)[0]
    return seen[0] * seen[1] * x + g


@program(t(N, 4), t(N, 4))
def a_hook_for_the_gradients_of_leaves(x: Tensor, w: Tensor) -> Tensor:
    """Called with None for what a backward does not reach; removed before the last."""
    u, v = x.detach().requires_grad_(), w.detach().requires_grad_()
    seen: list[Tensor | None] = []
    handle = register_multi_grad_hook((u, v), seen.extend)
    (u * v.sin()).sum().backward()
    (u * 3).sum().backward()
    handle.remove()
    (u * 5).sum().backward()
    first, second, third, none = seen
    assert first is not None
    assert none is None
    assert u.grad is not None
    return x * first + second + third + u.grad


@program(t(N, 4), t(4))
def a_hook_for_any_gradient(x: Tensor, w: Tensor) -> Tensor:
    seen: list[Tensor] = []
    a = x * w
    b = x.sin()
    c = b * a
    register_multi_grad_hook((a, b, c), seen.append, mode="any")
    grad(c.sum(), x, retain_graph=True)
    grad((a + b).sum(), x)
    first, second = seen
    return first * second + x


@program(t(N, 4), t(4))
def a_hook_counts_what_a_backward_runs(x: Tensor, w: Tensor) -> Tensor:
    a, b, c = x * w, x.sin(), w.cos()
    out, there = (a + b).sum(), list[list[bool]]()
    register_multi_grad_hook((a, b, c), lambda grads: there.append([g is not None for g in grads]))
    g = grad(out, x, retain_graph=True)[0]
    grad(out, w)
    assert there == [[True, True, False], [True, False, False]]
    return g + x


@program(t(N, 4))
def a_hook_on_a_leaf_that_is_asked(x: Tensor) -> Tensor:
    """Torch does not support it."""
    u = x.detach().requires_grad_()
    register_multi_grad_hook((u,), lambda grads: None)
    try:
        grad((u * 2).sum(), u)
    except RuntimeError:
        return x * 3
    return x


@program(t(N, 4), t(4))
def a_gradient_of_an_edge(x: Tensor, w: Tensor) -> Tensor:
    y = x.sin()
    z = (y * w).sum()
    g = grad(z, get_gradient_edge(y), retain_graph=True)[0]
    return g * x + grad(z, get_gradient_edge(x), create_graph=True)[0]


@program(t(N, 4), t(4))
def a_gradient_from_an_edge(x: Tensor, w: Tensor) -> Tensor:
    edge = get_gradient_edge(x * w)
    tangent = x.detach().cos()
    g = grad(edge, x, grad_outputs=tangent, retain_graph=True)[0]
    return g * x + grad(edge, w, grad_outputs=tangent, create_graph=True)[0]


@program(t(N, 4), t(4))
def an_edge_from_before_a_write(x: Tensor, w: Tensor) -> Tensor:
    y = x.sin()
    edge = get_gradient_edge(y)
    y.mul_(w)
    return grad(y.sum(), edge)[0] * x


@program(t(N, 4))
def a_backward_from_an_edge_to_another(x: Tensor) -> Tensor:
    u = x.detach().requires_grad_()
    y = u.exp()
    torch.autograd.backward(get_gradient_edge(y), torch.ones_like(y), inputs=[get_gradient_edge(u)])
    assert u.grad is not None
    return u.grad * x


@program(t(N, 4), t(4))
def hooks_that_keep_what_they_see(x: Tensor, w: Tensor) -> Tensor:
    seen: list[Tensor] = []
    y = x * w
    handles = [y.register_hook(seen.append), x.register_hook(seen.append)]
    grad((y * y).sum(), x, retain_graph=True)
    for handle in handles:
        handle.remove()
    first, second = seen
    return first * second + x

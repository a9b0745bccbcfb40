"""Functions that ask for gradients: the options of torch.autograd.grad, and what uses them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import map as mapped
from torch.autograd import grad

from tests.programs.registry import N, c, program, t


def slope(of: Tensor, by: Tensor, **options: Any) -> Tensor:
    """The gradient of a sum, with its graph."""
    return grad(of.sum(), by, create_graph=True, **options)[0]


# ------------------------------------------------------------------------------------ one gradient


@program(t(N, 4), t(4), loss=0)
def penalty_on_a_gradient(x: Tensor, w: Tensor) -> Tensor:
    return slope((x * w).tanh(), x).square().sum()


@program(t(N, 4), loss=0)
def penalty_on_the_norm_of_a_gradient(x: Tensor) -> Tensor:
    return (slope(x.sin() * x, x).norm(2, dim=1) - 1).square().mean()


@program(t(N, 4), t(4, 2), loss=0)
def penalty_beside_the_loss(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).sigmoid()
    return y.mean() + 0.1 * slope(y, w).abs().sum()


@program(t(N, 4), t(4))
def gradient_without_a_graph(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * w).exp().sum()
    (g,) = grad(y, w, retain_graph=True)
    return g, y


@program(t(N, 4), t(4))
def gradient_used_as_a_constant(x: Tensor, w: Tensor) -> Tensor:
    (g,) = grad((x * w).cos().sum(), w)
    return w - 0.1 * g


@program(c(N, 4), train=False)
def gradient_where_nothing_outside_requires_one(x: Tensor) -> Tensor:
    y = x.clone().requires_grad_()
    return grad(y.square().sum(), y)[0]


@program(t(N, 4))
def gradient_of_a_detached_copy(x: Tensor) -> Tensor:
    y = x.detach().requires_grad_()
    (g,) = grad((y.sin() * y).sum(), y)
    return x * g


@program(t(N, 4))
def gradient_of_a_made_value(x: Tensor) -> Tensor:
    y = x * 2
    z = y.exp()
    return grad(z.sum(), y, create_graph=True)[0] * y


@program(t(N, 4), t(4))
def gradient_of_two_values(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    gx, gw = grad((x * w).sin().sum(), (x, w), create_graph=True)
    return gx * w, gw


@program(t(N, 4))
def gradient_asked_by_its_own_value(x: Tensor) -> Tensor:
    y = x.sum()
    return grad(y, y, create_graph=True)[0] + y


@program(t(N, 4), t(4))
def gradient_by_tangents(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).tanh()
    return grad(y, w, grad_outputs=x.detach().cos(), create_graph=True)[0]


@program(t(N, 4), t(4))
def gradient_by_tangents_that_are_differentiated(x: Tensor, w: Tensor) -> Tensor:
    """Jacobian times vector, by two products from the left."""
    v = torch.ones(4, requires_grad=True)
    y = (x * w).tanh().sum(0)
    (g,) = grad(y, w, v, create_graph=True)
    return grad((g * w).sum(), v, create_graph=True)[0]


@program(t(N, 4), t(4))
def gradient_of_two_roots(x: Tensor, w: Tensor) -> Tensor:
    a, b = x * w, x.sin() + w
    return grad((a, b), x, (w.expand_as(a), torch.ones_like(b)), create_graph=True)[0]


@program(t(N, 4), t(4))
def gradient_of_the_same_root_twice(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).sum()
    return grad((y, y), w, create_graph=True)[0] * w


@program(t(N, 4), t(4))
def gradient_of_what_is_not_used(x: Tensor, w: Tensor) -> Tensor:
    gx, gw = grad(x.exp().sum(), (x, w), create_graph=True, allow_unused=True)
    assert gw is None
    return gx * w


@program(t(N, 4), t(4))
def gradient_of_what_is_not_used_as_zeros(x: Tensor, w: Tensor) -> Tensor:
    gx, gw = grad(x.exp().sum(), (x, w), create_graph=True, materialize_grads=True)
    return gx + gw * w


@program(t(4, 4))
def gradients_in_a_batch(x: Tensor) -> Tensor:
    """Rows of a Jacobian by one call that vmaps the backward."""
    y = (x.sin() @ x.detach().t()).sum(0)[:3]
    return grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)[0].sum(0) * x


@program(t(3, 4))
def gradient_through_branches_that_are_trained(x: Tensor) -> Tensor:
    """The backward holds a copy of the branches: these are followed still."""
    y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).sum()
    first = grad(y, x, retain_graph=True)[0]
    return y * 2 + first.sum() * x + grad(y, x, retain_graph=True)[0]


@program(t(3, 4))
def gradient_through_rows_that_are_trained(x: Tensor) -> Tensor:
    y = mapped(lambda row: row.sin() * row, x).sum()
    return y * 2 + grad(y, x, retain_graph=True)[0]


@program(t(2, 3))
def leaf_written_before_its_use(x: Tensor) -> Any:
    """As `nn.init` writes to parameters: the tensor is a leaf still, and has the gradient."""
    weight = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        weight.mul_(2)
    (x.detach() * weight).sum().backward()
    return weight.grad * x


@program(t(2, 3))
def leaf_with_a_hook_written_before_its_use(x: Tensor) -> Any:
    weight, seen = torch.ones(3, requires_grad=True), []
    weight.register_hook(lambda gradient: seen.append(gradient * 1))
    with torch.no_grad():
        weight[1:].add_(1)
    (x.detach() * weight).sum().backward()
    return weight.grad * x, seen[0] * 2


@program(t(2, 3))
def hook_on_a_result_that_gets_no_gradient(x: Tensor) -> Any:
    """Eager calls it with None, as another result of the operator gets one."""
    seen = list[Any]()
    first, second = (x * 1).unbind()
    first.register_hook(seen.append)
    (found,) = grad((second * 3).sum(), x)
    return x * found * (2 if len(seen) == 1 and seen[0] is None else 3)


@program(t(2, 3))
def module_made_and_trained_inside(x: Tensor) -> Any:
    layer = torch.nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.zero_()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x.detach()).square().sum().backward()
        optimizer.step()
    return layer(x)


# ------------------------------------------------------------------------------------------- twice


@program(t(N, 4), c(N, 4), loss=0)
def product_with_the_hessian(x: Tensor, v: Tensor) -> Tensor:
    g = slope((x.sin() * x).prod(1), x)
    return slope(g * v, x).sum()


@program(t(4), c(4))
def product_with_the_hessian_of_a_form(x: Tensor, v: Tensor) -> Tensor:
    m = torch.outer(x, x).tanh()
    (g,) = grad(x @ m @ x, x, create_graph=True)
    return grad(g @ v, x)[0] + x


@program(t(4))
def hessian_row_by_row(x: Tensor) -> Tensor:
    (g,) = grad((x.exp() * x.flip(0)).sum(), x, create_graph=True)
    return torch.stack([grad(each, x, retain_graph=True, create_graph=True)[0] for each in g])


@program(t(N, 3), t(3, 2))
def jacobian_row_by_row(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).tanh().sum(0)
    return torch.stack([grad(each, x, retain_graph=True, create_graph=True)[0] for each in y])


@program(t(N, 2))
def third_derivative(x: Tensor) -> Tensor:
    return slope(slope(slope(x.sin() * x.exp(), x), x), x)


@program(t(N, 2))
def third_derivative_without_a_graph(x: Tensor) -> Tensor:
    g = slope(slope(x.pow(4), x), x)
    return grad(g.sum(), x)[0] * x


@program(t(N, 3), loss=0)
def laplacian(x: Tensor) -> Tensor:
    g = slope((x * x.roll(1, 1)).sin(), x)
    parts = [grad(g[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(3)]
    return sum(parts).square().mean()  # type: ignore[union-attr]


@program(t(N, 3), c(N, 3), loss=0)
def score_matching_by_random_directions(x: Tensor, v: Tensor) -> Tensor:
    score = slope(-(x.square() * 0.5 + x.cos()), x)
    along = slope(score * v, x)
    return ((along * v).sum(1) + 0.5 * score.square().sum(1)).mean()


@program(t(4), t(4))
def mixed_second_derivative(x: Tensor, w: Tensor) -> Tensor:
    (g,) = grad((x * w).sin().sum(), x, create_graph=True)
    return grad(g.sum(), w, create_graph=True)[0]


@program(t(4))
def gradient_of_a_gradient_and_the_value(x: Tensor) -> Tensor:
    y = x.exp().sum()
    (g,) = grad(y, x, create_graph=True)
    return grad(g.sum() * y, x, create_graph=True)[0]


# --------------------------------------------------------------------------- grad modes and levels


@program(t(N, 4))
def gradient_under_no_grad_and_enable_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        base = x * 2
        with torch.enable_grad():
            y = base.clone().requires_grad_()
            (g,) = grad(y.cos().sum(), y)
        step = base - g
    return x + step


@program(t(N, 4))
def gradient_asked_under_no_grad(x: Tensor) -> Tensor:
    y = x.sin().sum()
    with torch.no_grad():
        (g,) = grad(y, x)
    return x * g


@program(t(N, 4))
def graph_created_under_no_grad(x: Tensor) -> Tensor:
    y = x.exp().sum()
    with torch.no_grad():
        (g,) = grad(y, x, create_graph=True)
    return g * x


@program(t(N, 4))
def gradient_detached_afterwards(x: Tensor) -> Tensor:
    return x * slope(x.tanh(), x).detach()


@program(t(N, 4), t(4, 4))
def gradient_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = (x @ w).float().sum()
        (g,) = grad(y, w, create_graph=True)
    return g * w


@program(t(N, 4), t(4, 4))
def gradient_outside_of_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, w).tanh()
    return grad(y.float().sum(), w, create_graph=True)[0] + w


# --------------------------------------------------------------------------------- loops, branches


@program(t(N, 4), c(N, 4))
def descends_in_a_loop(x: Tensor, aim: Tensor) -> Tensor:
    z = x
    for _ in range(3):
        (g,) = grad((z - aim).square().sum(), z, create_graph=True)
        z = z - 0.1 * g
    return z


@program(t(N, 4), c(N, 4))
def descends_in_a_loop_without_graphs(x: Tensor, aim: Tensor) -> Tensor:
    z = x.detach()
    for _ in range(3):
        z.requires_grad_()
        (g,) = grad((z.sin() - aim).square().sum(), z)
        z = (z - 0.1 * g).detach()
    return x * z


@program(t(4), loss=0)
def unrolled_with_a_learned_rate(rate: Tensor) -> Tensor:
    z = torch.ones(4, requires_grad=True)
    for _ in range(2):
        z = z - rate * grad(z.pow(4).sum(), z, create_graph=True)[0]
    return z.pow(4).sum()


@program(t(3), t(3, 3))
def implicit_differentiation_of_a_fixed_point(x: Tensor, w: Tensor) -> Tensor:
    m = 0.3 * w / w.detach().norm()
    with torch.no_grad():
        z = torch.zeros(3)
        for _ in range(20):
            z = torch.tanh(m @ z + x)
    z = torch.tanh(m @ z + x)
    z0 = z.detach().requires_grad_()
    f0 = torch.tanh(m @ z0 + x)
    rows = [grad(each, z0, retain_graph=True)[0] for each in f0]
    return torch.linalg.solve(torch.eye(3) - torch.stack(rows).detach(), z)


@program(t(N, 4))
def gradient_of_clipped_values(x: Tensor) -> Tensor:
    return slope(x.clamp(-0.5, 0.5).square(), x) + x


@program(t(N, 4))
def gradient_of_the_largest(x: Tensor) -> Tensor:
    return slope(x.max(1).values.square(), x)


@program(t(N, 4))
def gradient_through_indices(x: Tensor) -> Tensor:
    y = x[:, torch.tensor([0, 2, 2])]
    return slope(y.pow(3), x) * x


@program(t(3, 4))
def gradient_through_a_write_over_all_of_a_tensor(x: Tensor) -> Tensor:
    """The engine copies the gradient of what was there into a layout of its own."""
    y = x * 2
    z = torch.zeros(3, 4)
    z[:] = torch.stack([z.detach(), y], -1).logsumexp(-1)
    return slope(z.exp(), y)


@program(t(3, 3))
def gradient_through_writes_to_memory_with_gaps(x: Tensor) -> Tensor:
    y = torch.empty_strided((3, 3), (8, 2)).fill_(1.0)
    y.mul_(x)
    y[:2].mul_(x[1:])
    return slope(y.exp(), x)

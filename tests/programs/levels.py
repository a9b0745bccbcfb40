"""Derivatives that a program computes itself: levels of torch.func."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

from tests.programs.registry import N, built, c, program, t

Params = dict[str, Tensor]


def bumps(x: Tensor) -> Tensor:
    return x.sin() * x.sum() + x.exp()


def energy(x: Tensor) -> Tensor:
    return (bumps(x) * x).sum()


class Net(nn.Module):
    """Two layers, with what a test wants between them."""

    def __init__(self, *between: nn.Module) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)
        self.between = nn.Sequential(*between)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.between(self.first(x))))
        return out


class With(nn.Module):
    """Calls a function with a network."""

    def __init__(self, net: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.net, self.function = net, function

    def forward(self, *args: Any) -> Any:
        return self.function(self.net, *args)


# ---- Jacobians and products with them -----------------------------------------------------------


@program(t(3, 4), t(3, 4))
def product_with_a_jacobian(x: Tensor, v: Tensor) -> Any:
    return jvp(bumps, (x,), (v,))


@program(t(4))
def jacobians_of_both_modes(x: Tensor) -> Any:
    return jacfwd(bumps)(x), jacrev(bumps)(x), jacrev(bumps, chunk_size=2)(x)


@program(t(4))
def hessians_by_all_orders(x: Tensor) -> Any:
    return hessian(energy)(x), jacfwd(jacfwd(energy))(x), jacrev(jacrev(energy))(x)


@program(t(4), t(4))
def products_with_a_hessian(x: Tensor, v: Tensor) -> Any:
    forward = jvp(grad(energy), (x,), (v,))[1]
    return forward, vjp(grad(energy), x)[1](v)[0]


@program(t(3, 4), t(3, 4))
def pulled_back_after_its_level(x: Tensor, v: Tensor) -> Any:
    out, pull = vjp(bumps, x)
    rows = vmap(pull)(torch.stack([v, v * 2, out]))[0]
    return out, pull(v)[0], rows


@program(t(3, 4), c(3, 4))
def tangents_that_are_absent(x: Tensor, w: Tensor) -> Any:
    w = torch.where(w > 1, torch.inf, w)

    def mixed(y: Tensor) -> tuple[Tensor, ...]:
        return y * w, w / y, torch.stack([w, y]), torch.where(y > 0, w, y), w @ y.mT, w - y

    return jvp(mixed, (x,), (x * -0.0,))


@program(t(6, 4), t(3, 4))
def tangents_in_other_layouts(x: Tensor, v: Tensor) -> Any:
    part, turned = x[1:4], v.t().contiguous().t()

    def views(y: Tensor) -> tuple[Tensor, Tensor]:
        return y.t().reshape(-1), y[:, 1:] * 2

    return jvp(views, (part,), (v,)), jvp(views, (v,), (turned,)), jvp(views, (part,), (part,))


@program(t(3, 4), t(3, 4))
def in_place_under_jvp(x: Tensor, v: Tensor) -> Any:
    def written(y: Tensor) -> Tensor:
        z = y * 2
        row = z[0]
        z.mul_(y)
        row.add_(y[1])
        z[1] = y[2].exp()
        return z + row

    return jvp(written, (x,), (v,))


@program(t(3, 4), t(3, 4))
def layers_under_jvp(x: Tensor, v: Tensor) -> Any:
    def layers(y: Tensor) -> tuple[Tensor, ...]:
        norm = nn.functional.layer_norm(y, (4,))
        loss = nn.functional.cross_entropy(y, torch.tensor([0, 3, 1]))
        return norm, y.softmax(-1), nn.functional.gelu(y), loss, y.logsumexp(0), y.cumprod(1)

    return jvp(layers, (x,), (v,)), jvp(grad(lambda z: layers(z)[3]), (x,), (v,))


@program(t(3, 4))
def value_beside_gradient(x: Tensor) -> Any:
    return grad_and_value(lambda y: (energy(y), bumps(y)), has_aux=True)(x)


@program(t(3, 4))
def gradient_under_modes(x: Tensor) -> Any:
    def partly(y: Tensor) -> Tensor:
        with torch.no_grad():
            scale = y.norm()
        return (y * scale).sum()

    with torch.no_grad():
        fixed = grad(energy)(x), jvp(bumps, (x,), (x,))[1]
    return grad(partly)(x), fixed[0] * x, fixed[1] * x


@program(c(3, 4), train=False)
def functionalized_inside(x: Tensor) -> Any:
    return functionalize(lambda y: y.clone().add_(1)[0].mul_(2))(x)


# ---- vmap ---------------------------------------------------------------------------------------


@program(t(N, 4), t(4))
def gradients_of_each_row(x: Tensor, w: Tensor) -> Any:
    return vmap(grad(lambda v, row: (row * v).sin().sum()), (None, 0))(w, x)


@program(t(3, 4))
def drawn_for_each_row(x: Tensor) -> Any:
    def noisy(row: Tensor) -> Tensor:
        kept = nn.functional.dropout(row, 0.4)
        return kept * torch.rand_like(row) + torch.randn(4) + torch.bernoulli(row.sigmoid())

    return vmap(noisy, randomness="different")(x)


@program(t(3, 4))
def drawn_for_all_rows(x: Tensor) -> Any:
    return vmap(lambda row: row * torch.rand(4) + torch.randn_like(row), randomness="same")(x)


@program(t(5, 4))
def rows_in_chunks_and_places(x: Tensor) -> Any:
    chunks = vmap(bumps, chunk_size=2)(x)
    return chunks, vmap(lambda a, b: (a * b["k"], b["k"]), (1, {"k": 0}), (1, 0))(x, {"k": x.mT})


@program(t(3, 4))
def rows_written(x: Tensor) -> Any:
    def written(row: Tensor) -> Tensor:
        y = row * 2
        y[0] = 0
        y[1:].add_(row[:3]).mul_(3)
        return y

    return vmap(written)(x), vmap(grad(lambda row: written(row).exp().sum()))(x)


@program(t(3, 4))
def branches_of_each_row(x: Tensor) -> Any:
    def row(each: Tensor) -> Any:
        return torch.cond(each.sum() > 0, torch.sin, torch.cos, (each,))

    return vmap(row)(x)


# ---- networks -----------------------------------------------------------------------------------


@built(t(3, 4))
def clipped_gradients_of_examples() -> Any:
    """As for differential privacy."""

    def clipped(net: Net, x: Tensor) -> Any:
        params = dict(net.named_parameters())

        def loss(given: Params, row: Tensor) -> Tensor:
            return functional_call(net, given, (row[None],)).pow(2).sum()

        each = vmap(grad(loss), (None, 0), randomness="different")(params, x)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()], 1).norm(dim=1)
        scale = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        return {k: torch.einsum("n,n...->...", scale, g) for k, g in each.items()}

    return With(Net(nn.Dropout(0.3)), clipped)


@built(t(3, 4))
def laplacian_of_a_network() -> Any:
    """As a physics-informed network has it: by a trace of the Hessian, and by products."""

    def laplacian(net: Net, x: Tensor) -> Any:
        def scalar(point: Tensor) -> Tensor:
            return net(point).squeeze(-1)

        def by_products(point: Tensor) -> Tensor:
            def second(e: Tensor) -> Tensor:
                return torch.dot(jvp(grad(scalar), (point,), (e,))[1], e)

            return vmap(second)(torch.eye(4)).sum()

        by_trace = vmap(lambda point: hessian(scalar)(point).trace())(x)
        return by_trace, vmap(by_products)(x)

    return With(Net(nn.LayerNorm(5)), laplacian)


@built(t(3, 4))
def residual_of_an_equation() -> Any:
    """u_t + u u_x - 0.1 u_xx, with respect to two columns of the points."""

    def residual(net: Net, points: Tensor) -> Tensor:
        def u(time: Tensor, place: Tensor, rest: Tensor) -> Tensor:
            return net(torch.cat([time[None], place[None], rest])).squeeze(-1)

        def at(point: Tensor) -> Tensor:
            given = point[0], point[1], point[2:]
            slope = grad(u, argnums=1)
            second = grad(slope, argnums=1)(*given)
            return grad(u)(*given) + u(*given) * slope(*given) - 0.1 * second

        return vmap(at)(points).pow(2).mean()

    return With(Net(), residual)


@built(t(3, 4))
def ensemble() -> Any:
    nets = [Net(), Net(), Net()]

    def mapped(net: nn.ModuleList, x: Tensor) -> Any:
        params, buffers = stack_module_state(list(net))
        base = net[0]

        def one(p: Params, b: Params, given: Tensor) -> Tensor:
            out: Tensor = functional_call(base, (p, b), (given,))
            return out

        return vmap(one, (0, 0, None))(params, buffers, x) * x.sum()

    return With(nn.ModuleList(nets), mapped)


@built(t(3, 4), c(3, 1))
def learning_to_learn() -> Any:
    """MAML: a step of the parameters by their gradient, differentiated through."""

    def adapted(net: Net, x: Tensor, target: Tensor) -> Any:
        params = dict(net.named_parameters())

        def loss(given: Params, batch: Tensor) -> Tensor:
            return nn.functional.mse_loss(functional_call(net, given, (batch,)), target)

        def task(batch: Tensor) -> Tensor:
            slopes = grad(loss)(params, batch)
            return loss({k: p - 0.1 * slopes[k] for k, p in params.items()}, batch)

        return vmap(task)(torch.stack([x, x * 2])).mean()

    return With(Net(), adapted)


@built(t(3, 4))
def tangent_kernel() -> Any:
    def kernel(net: Net, x: Tensor) -> Tensor:
        params = dict(net.named_parameters())
        rows = vmap(jacrev(lambda p, row: functional_call(net, p, (row[None],))[0]), (None, 0))
        flat = [j.flatten(2) for j in rows(params, x).values()]
        return sum((torch.einsum("naf,mbf->nmab", j, j) for j in flat), torch.zeros(()))

    return With(Net(), kernel)


@built(t(3, 4))
def hessian_of_parameters() -> Any:
    def curvature(net: Net, x: Tensor) -> Any:
        params = {k: p for k, p in net.named_parameters() if k.startswith("last")}
        found = hessian(lambda p: functional_call(net, p, (x,)).pow(2).mean())(params)
        return [block for row in found.values() for block in row.values()]

    return With(Net(), curvature)


@built(t(3, 4))
def convolution_under_levels() -> Any:
    def mapped(net: nn.Conv2d, x: Tensor) -> Any:
        def conv(y: Tensor) -> Tensor:
            out: Tensor = net(y.reshape(1, 1, 3, 4))
            return out

        rows = vmap(grad(lambda y: conv(y).sum()))(torch.stack([x, x * 2]))
        return rows, jacfwd(conv)(x), jvp(conv, (x,), (x,))[1]

    return With(nn.Conv2d(1, 2, 2), mapped)


# ---- users' own Functions -----------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """One with rules for all levels."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x**3, 3 * x**2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, slope: Tensor) -> Tensor:
        x, by = ctx.saved_tensors
        return g * by + slope * 6 * x

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
        return Cube.apply(x), (in_dims[0], in_dims[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        x, by = ctx.saved_tensors
        return tangent * by, 6 * x * tangent


class Wave(torch.autograd.Function):
    """One whose rule for vmap torch makes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * ctx.saved_tensors[0].cos()


@program(t(3, 4))
def functions_under_levels(x: Tensor) -> Any:
    def cubed(y: Tensor) -> Tensor:
        out: Tensor = Cube.apply(y)[0]
        return out

    return (
        vmap(cubed)(x), grad(lambda y: cubed(y).sum())(x), jvp(cubed, (x,), (x,)),
        vmap(grad(lambda y: cubed(y).sum()))(x), jacfwd(grad(lambda y: cubed(y).sum()))(x[0]),
    )  # fmt: skip


@program(t(3, 4))
def functions_with_generated_rules(x: Tensor) -> Any:
    pushed = vmap(lambda a, b: jvp(Wave.apply, (a,), (b,)))(x, x * 2)
    return vmap(Wave.apply)(x), vmap(grad(lambda row: Wave.apply(row).sum()))(x), pushed

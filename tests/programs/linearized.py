"""Linearized functions: what `torch.func.linearize` gives, called any number of times."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, linearize, vjp, vmap

from tests.programs.levels import Net, Params, With, bumps, energy
from tests.programs.registry import N, built, c, program, t


@program(t(3, 4), t(3, 4))
def linearized(x: Tensor, v: Tensor) -> Any:
    out, push = linearize(bumps, x)
    return out, push(v), push(out * 2)


@program(t(3, 4), t(3, 4))
def linearized_rows_of_a_jacobian(x: Tensor, v: Tensor) -> Any:
    out, push = linearize(lambda y: bumps(y).sum(0), x)
    return out, vmap(push)(torch.stack([v, v * 2])), push(v)


@program(t(N, 4), t(4, 4))
def linearized_in_two(x: Tensor, w: Tensor) -> Any:
    out, push = linearize(lambda y, by: {"a": (y @ by).softmax(-1), "b": [by.exp()]}, x, w)
    return out, push(x.sin(), w.t())


@program(t(3, 4), t(4, 3))
def linearized_in_other_layouts(x: Tensor, v: Tensor) -> Any:
    def views(y: Tensor) -> Any:
        left, right = y.chunk(2, 0)
        return y.t().reshape(-1), y[:, 1:] * 2, torch.cat([right, left]), y.expand(2, 4, 3)

    return linearize(views, x.t())[1](v), linearize(views, v)[1](x.t()), linearize(bumps, x[0])[0]


@program(t(3, 4), c(3, 4))
def linearized_layers(x: Tensor, v: Tensor) -> Any:
    def layers(y: Tensor) -> tuple[Tensor, ...]:
        norm = nn.functional.layer_norm(y, (4,))
        loss = nn.functional.cross_entropy(y, torch.tensor([0, 3, 1]))
        return norm, nn.functional.gelu(y), loss, y.logsumexp(0), y.norm(dim=1), y.prod(0), y.std()

    out, push = linearize(layers, x)
    return out, push(v)


@program(t(3, 4), t(3, 4))
def linearized_gradient(x: Tensor, v: Tensor) -> Any:
    """Products with a Hessian, forward over reverse; and what is linear pulled back."""
    slope, push = linearize(grad(energy), x)
    return slope, push(v), vjp(push, v)[1](x)


@program(t(3, 4), t(3, 4))
def linearized_under_modes(x: Tensor, v: Tensor) -> Any:
    with torch.no_grad():
        out, push = linearize(bumps, x)
        fixed = push(v)
    later = linearize(bumps, x * v)[1]
    return out + x, fixed * x, push(v), later(x), later(v).sum()


@program(t(3, 4), t(3, 4))
def linearized_where_it_writes(x: Tensor, v: Tensor) -> Any:
    def written(y: Tensor) -> Tensor:
        z = torch.cat([y, y * 2])
        return z[1:].clone() + torch.stack([y[0]] * 5)

    push = linearize(written, x)[1]
    tangent = push(v)
    tangent.mul_(2)
    return tangent, push(v)


@program(t(3, 4), t(3, 4))
def linearized_beside_writes(x: Tensor, v: Tensor) -> Any:
    z = x * 1
    push = linearize(lambda y: torch.where(y > 0, y * z, y.exp())[torch.tensor([0, 2])], x)[1]
    first = push(v)
    z.add_(1)
    first.mul_(2)
    return first, push(v), z


@program(t(3, 4), t(3, 4))
def linearized_views(x: Tensor, v: Tensor) -> Any:
    """Its tangents lie in the memory of those given."""
    one, other = linearize(lambda y: (y.view(4, 3).t(), y), x)[1](v * 1)
    one.mul_(2)
    return one, other


@program(t(3, 4), t(3, 4))
def linearized_by_parts(x: Tensor, v: Tensor) -> Any:
    out, push = linearize(lambda y: torch.fft.rfft((y @ y.t()).tanh()).abs(), x)
    there = push(v)
    return there, vjp(push, v)[1](out), jvp(push, (v,), (x,)), vmap(push)(v.expand(2, 3, 4))


@built(t(3, 4))
def linearized_network() -> Any:
    """As a Laplace approximation or a tangent kernel has it: in the parameters."""

    def pushed(net: Net, x: Tensor) -> Any:
        params = dict(net.named_parameters())

        def of(given: Params) -> Tensor:
            out: Tensor = functional_call(net, given, (x,))
            return out

        out, push = linearize(of, params)
        ones = {name: torch.ones_like(each) for name, each in params.items()}
        return out, push(ones), push({name: each * 2 for name, each in params.items()})

    return With(Net(nn.LayerNorm(5)), pushed)

"""Where gradients go: shared, missing, stopped, and summed in eager's order."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.registry import N, built, c, ints, program, t


@program(t(N, 4), loss=0)
def square_of_input(x: Tensor) -> Tensor:
    return (x * x).sum()


@program(t(N, 4), loss=0)
def used_three_times(x: Tensor) -> Tensor:
    return (x.sin() * 0.1 + x.exp() * 0.3 + x.tanh() * 0.7).sum()


@program(t(N, 4), t(4), loss=0)
def used_five_times(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    a, b = y.sin(), y.cos() * w
    d = (a * b + w.exp()) * y
    return (d * 0.3 + y / 3 + a * w).sum()


@program(t(N, 4))
def diamond(x: Tensor) -> Tensor:
    y = x.sin()
    left, right = y * 0.37, y.exp()
    return left * right + y + x


@program(t(3, 4), t(3, 4), t(4))
def unused_input(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    del y
    return x * z


@program(t(3, 4), t(3, 4), loss=0)
def input_that_does_not_reach_the_loss(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(), y * 2


@program(t(3, 4), loss=1)
def loss_is_the_second_output(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y, (y * y).mean()


@program(t(3, 4), t(4))
def several_outputs_with_tangents(x: Tensor, w: Tensor) -> dict[str, Tensor]:
    y = x @ w
    return {"sum": y.sum(), "y": y, "arg": y.argmax(), "x": x.exp(), "fixed": w.detach() * 2}


class Shared(nn.Module):
    """An embedding tied to the output layer, with one parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.mid = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, ids: Tensor) -> Tensor:
        """A scalar loss."""
        scores = self.out(torch.tanh(self.mid(self.embed(ids))))
        return F.cross_entropy(scores, ids)


@built(ints(7, N), loss=0)
def tied_weights() -> nn.Module:
    return Shared()


@built(t(N, 3), loss=0)
def frozen_parameters() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].weight.requires_grad_(requires_grad=False)
    net[2].requires_grad_(requires_grad=False)
    return nn.Sequential(net, nn.Flatten(0), Mean())


class Mean(nn.Module):
    """The mean of all elements."""

    def forward(self, x: Tensor) -> Tensor:
        """A scalar."""
        return (x * x).mean()


@program(t(N, 4))
def no_grad_block(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().amax(-1, keepdim=True)
    return x / scale


@program(t(N, 4))
def no_grad_decorator(x: Tensor) -> Tensor:
    @torch.no_grad()
    def norm(y: Tensor) -> Tensor:
        return (y * y).sum(-1, keepdim=True)

    return x * norm(x)


@program(t(3, 4))
def grad_switched_on_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    with torch.set_grad_enabled(mode=False):
        y = y + z
    return y * x + z


@program(t(3, 4), loss=0)
def straight_through(x: Tensor) -> Tensor:
    rounded = x + (x.round() - x).detach()
    return (rounded * rounded).sum()


@program(t(3, 4), c(3, 4))
def branches_on_requires_grad(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2 if x.requires_grad else x * 3
    if y.requires_grad or not (x + y).requires_grad or x.detach().requires_grad:
        z = z * 5
    with torch.no_grad():
        extra = 0 if (x * y).requires_grad else 1
    return z * y + extra


@program(t(3, 4))
def branches_on_grad_mode(x: Tensor) -> Tensor:
    y = x * 2 if torch.is_grad_enabled() else x * 3
    with torch.no_grad():
        scale = 4 if torch.is_grad_enabled() else 5
    return y * scale


@program(t(3, 4))
def nothing_to_differentiate_after_no_grad(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        y = x * 2
    return y, y.sum() + x.sum()


@program(t(3, 4))
def turned_differentiable_inside(x: Tensor) -> Tensor:
    scale = torch.ones(4).requires_grad_()
    return x * scale


@program(c(3, 4), t(3, 4), loss=0)
def where_hides_nan(x: Tensor, w: Tensor) -> Tensor:
    safe = torch.where(w > 0, w.sqrt(), torch.zeros(()))
    return torch.where(x > 0, (safe * x).log1p(), w).sum()


@program(t(2, 3), loss=0)
def nan_gradient(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.log(), torch.full_like(x, -1.0)).sum() + (x - x).norm()


@program(t(3, 5))
def parts_used_of_many(x: Tensor) -> Tensor:
    first, _, third = x.unbind(0)
    _, right = x.split([2, 3], 1)
    return first * third + right.sum() + x.chunk(2, 1)[1][0].sum()


@program(t(3, 5))
def values_and_indices(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = x.max(1)
    top = x.topk(2, 1).values
    return values + top.sum(1), places


class Cube(torch.autograd.Function):
    """x cubed, with the derivative written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The cube."""
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Not what autograd would compute, on purpose."""
        (x,) = ctx.saved_tensors
        return grad * 3.5 * x * x


@program(t(3, 4), may_refuse="a derivative in Python")
def function_with_its_own_backward(x: Tensor) -> Tensor:
    return Cube.apply(x * 2) + x


@built(t(3, 4), loss=0)
def checkpointed() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(self.net, x, use_reentrant=False)
            return (y * x).sum()

    return Net()


@built(t(3, 4), loss=0)
def checkpointed_dropout() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU())

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(self.net, x, use_reentrant=False)
            return F.dropout(y, 0.5).sum()

    return Net()


@program(t(3, 4))
def hook_on_a_tensor(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    return y.sin()


@program(t(3), loss=0, may_refuse="a gradient inside the program")
def gradient_of_a_gradient(x: Tensor) -> Tensor:
    y = (x * x * x).sum()
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    return (slope * slope).sum()


@program(t(3, 4), t(3, 4))
def inference_mode_inside(x: Tensor, y: Tensor) -> Tensor:
    with torch.inference_mode():
        n = int((x.detach() * 2).shape[0])
    return x * y * n


@program(t(N, 4), t(N, 4))
def made_in_inference_mode_and_used(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        made = x.exp()
        part = made.data[1:]
        part.t()[0].mul_(2)
        with torch.enable_grad():
            still = y * 3
        with torch.inference_mode(mode=False):
            followed = y * 2
        turned = x.t()
        noisy = F.rrelu(y, training=False)
    return made.clone() * x, made + y, still, followed * 2, turned * 2, noisy


@program(t(N, 4))
def buffer_written_in_inference_mode(x: Tensor) -> Tensor:
    scale = x.detach() * 1
    with torch.inference_mode():
        scale.mul_(2)
        scale += 1 if torch.is_inference_mode_enabled() else 2
    return x * scale


@program(t(2, 3), t(3))
def broadcasts_are_summed(x: Tensor, w: Tensor) -> Tensor:
    return x * w + w.exp() * x[:, :1] - w.sum()


@program(t(3, 4))
def zero_gradient_is_not_none(x: Tensor) -> Tensor:
    return x.round() + x.sign() + x.floor() + (x * 0)


@program(t(3, 4), t(3, 4))
def detached_in_place(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.detach_()
    return z * y


@program(t(3, 4), loss=0)
def ties_share_the_gradient(x: Tensor) -> Tensor:
    y = x.round()
    return (y.amax(1) * 2 + y.amin(1) + x.clamp(-0.5, 0.5).max() + y.abs().max() * x.sum(1)).sum()


@program(t(N, 4), c(4))
def leaves_made_inside(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    cut_off = (x.detach() * 2).requires_grad_()
    seen = x.detach().requires_grad_(True)
    ones = torch.ones(4, requires_grad=True)
    mark = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    marked = torch.zeros(4)
    marked.requires_grad = True
    with torch.no_grad():
        drawn = torch.rand(4, requires_grad=True)
    assert (cut_off.is_leaf, ones.is_leaf, mark.requires_grad) == (True, True, True)
    assert (ones * z).requires_grad == torch.is_grad_enabled()
    return cut_off, seen.sin() + x, ones * z, ones, x * mark, marked, drawn


@program(t(N, 4), t(N, 4), t(N, 4))
def shared_among_equals(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    rounded = x + (x.round() - x).detach()  # some are equal
    return -rounded.max(), -y.median(), -z.nanmedian()  # negative zeros are no zeros

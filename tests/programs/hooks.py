"""Hooks on gradients: on what, when, how many, and what they give."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.registry import N, built, program, t

HOLDS = "a forward cut has no hook that holds a tensor of the run"
ATEN = "an aten cut does not train through the Function by which modules have hooks"


@program(t(N, 4), loss=0)
def hook_scales(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    return y.sin().sum()


@program(t(N, 4))
def hook_on_an_output(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda grad: grad * 3)
    return y


@program(t(N, 4))
def hook_on_an_output_used_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    y.register_hook(lambda grad: grad * 3 + 1)
    return y, y.exp() * y


@program(t(3, 4), loss=0)
def hook_on_a_value_used_before_and_after(x: Tensor) -> Tensor:
    y = x.sin()
    before = y.exp() * y
    y.register_hook(lambda grad: grad * grad)
    return (before + y.cos() * y).sum()


@program(t(3, 4), loss=0)
def two_hooks_in_order(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    y.register_hook(lambda grad: grad + 1)
    return (y * y).sum()


@program(t(3, 4), loss=0)
def hook_that_gives_nothing(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: None)
    return y.exp().sum()


@program(t(3, 4), loss=0)
def hook_removed_again(x: Tensor) -> Tensor:
    y = x * 2
    first = y.register_hook(lambda grad: grad * 3)
    y.register_hook(lambda grad: grad + 5)
    first.remove()
    return y.exp().sum()


@program(t(3, 4), loss=0)
def hook_on_an_argument(x: Tensor) -> Tensor:
    x.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
    return (x * x).sin().sum()


@program(t(3, 4), t(3, 4), loss=0)
def hook_on_an_argument_that_no_gradient_reaches(x: Tensor, y: Tensor) -> Tensor:
    y.register_hook(lambda grad: grad * 3)
    return (x * y.detach()).sum()


@program(t(3, 4), loss=0)
def hook_on_a_view(x: Tensor) -> Tensor:
    y = x.sin()
    row = y[1]
    row.register_hook(lambda grad: grad * 3)
    return (row.exp() * y).sum()


@program(t(3, 4), loss=0)
def hooks_before_and_after_a_write(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda grad: grad * 3)
    y.mul_(2)
    y.register_hook(lambda grad: grad + 1)
    return (y * y.cos()).sum()


@program(t(3, 4), loss=0)
def hook_on_a_view_of_what_is_written(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    row.register_hook(lambda grad: grad * 7)
    y.mul_(2)
    row.register_hook(lambda grad: grad * 5)  # until torch 2.14, to the old view's table
    later = row * 2
    row.register_hook(lambda grad: grad + 1)
    return (y * y).sum() + later.sum()


@program(t(3, 4), loss=0)
def hooks_on_a_view_written_again_and_again(x: Tensor) -> Tensor:
    y = x * 2
    row = y[0]
    row.register_hook(lambda grad: grad * 7)
    y.mul_(2)
    row.register_hook(lambda grad: grad * 5)
    y.mul_(3)
    row.register_hook(lambda grad: grad + 1)
    return (y * y).sum() + row.sum()


@program(t(3, 4), loss=0)
def hooks_around_a_write_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    row = y[0]
    row.register_hook(lambda grad: grad * 5)
    row.mul_(0.5)
    row.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: grad - 2)
    return (y * y).sum() + row.exp().sum()


@program(t(3, 4), loss=0)
def hook_after_a_write_that_autograd_does_not_see(x: Tensor) -> Tensor:
    y = x * 2
    before = y * 3
    with torch.no_grad():
        y.mul_(2)
    y.register_hook(lambda grad: grad * grad)
    return before.sum() + y.sum()


@program(t(3, 4), loss=0)
def hook_before_a_shape_that_changes_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda grad: grad * 3)
    y.t_()
    y.register_hook(lambda grad: grad.cumsum(0))
    return y.exp().sum()


@program(t(3, 4), loss=0)
def hook_of_another_layout(x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda grad: grad.t().contiguous().t())
    return (y.exp() * x).sum()


@program(t(3, 4), loss=0)
def hook_that_writes_to_its_gradient(x: Tensor) -> Tensor:
    y = (x * 2).sin()
    y.register_hook(lambda grad: grad.clamp_(-0.5, 0.5))
    return (y * y * y).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hook_that_reads_a_tensor(x: Tensor) -> Tensor:
    y = x.sin()
    z = y.exp()
    z.register_hook(lambda grad: grad * y.detach())
    return (z * y).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hook_that_reads_what_is_written_later(x: Tensor) -> Tensor:
    y, scale = x.sin(), torch.ones(4)
    y.register_hook(lambda grad: grad * scale)
    scale.add_(2)
    return (y.exp() * x).sum()


@program(t(3, 4), loss=0, may_refuse=HOLDS)
def hook_that_is_a_partial(x: Tensor) -> Tensor:
    y = (x * 2).sin()
    y.register_hook(partial(torch.mul, y.detach().abs()))
    return y.exp().sum()


class Clipped:
    """A hook that is an object."""

    most = 0.5

    def __call__(self, grad: Tensor) -> Tensor:
        return grad.clamp(-self.most, self.most)


CLIPPED = Clipped()


@program(t(3, 4), loss=0)
def hook_that_is_an_object(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(CLIPPED)
    return y.exp().sum()


@program(t(3, 4), loss=0)
def hooks_of_which_each_reads_the_last_of_a_loop(x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for factor in (1, 2, 3):
        y = x * factor
        y.register_hook(lambda grad: grad * factor)  # noqa: B023 - as it is bound then
        total = total + y.sin().sum()
    return total


@program(t(3, 4), loss=0)
def hooks_where_one_of_several_results_has_a_gradient(x: Tensor) -> Tensor:
    a, b, _ = (x * 2).unbind(0)
    a.register_hook(lambda grad: grad * 3)
    b.register_hook(lambda grad: None if grad is None else grad * 5)
    return a.exp().sum()


@program(t(3, 4), loss=0)
def hook_in_a_checkpoint(x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda grad: grad * 2)
        return y.exp()

    return checkpoint(block, x * 2, use_reentrant=False).sum()


@program(t(4, 4), loss=0)
def hook_under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        y.register_hook(lambda grad: grad * 3)
        return (y @ x).float().sum()


@program(t(3, 4), t(4, 4), loss=0)
def hooks_on_composites(x: Tensor, w: Tensor) -> Tensor:
    y = F.linear(x, w)
    y.register_hook(lambda grad: grad * 2)
    y = F.layer_norm(y, (4,))
    y.register_hook(lambda grad: grad + 0.1)
    y = F.cross_entropy(y, torch.tensor([0, 3, 1]), reduction="none")
    y.register_hook(torch.sin)
    return y.sum()


@program(t(3, 4), loss=0)
def retained_gradient(x: Tensor) -> Tensor:
    y = x.sin()
    y.retain_grad()
    return y.exp().sum()


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b * 2


@program(t(3, 4), loss=0, may_refuse=ATEN)
def hook_on_the_node_of_a_function(x: Tensor) -> Tensor:
    a, b = Pair.apply(x * 2)
    a.register_hook(lambda grad: grad * 2)
    a.grad_fn.register_hook(lambda given, got: (given[0] * got[0],))
    return (a * b).sum()


@built(t(3, 4), loss=0, may_refuse=ATEN)
def module_backward_hooks() -> nn.Module:
    net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2))
    net[1].register_full_backward_hook(lambda module, before, after: (before[0] * after[0],))
    net[1].register_full_backward_pre_hook(lambda module, after: (after[0] + 1,))
    net[2].register_full_backward_pre_hook(lambda module, after: (after[0] * 3,))
    return nn.Sequential(net, nn.Flatten(0), nn.Softmax(0), Summed())


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * x).sum()


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return x * y * scale, y.sin()


@built(t(3, 4), t(3, 4), loss=0, may_refuse=ATEN)
def module_backward_hooks_with_several_tensors() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two = Two()
            self.two.register_full_backward_hook(
                lambda module, before, after: (before[0] * 2, before[1] + 1, None)
            )

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            a, b = self.two(x, y, 0.5)
            return (a * 3 + b).exp().sum()

    return Net()

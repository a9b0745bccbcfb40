"""Lists of tensors, computed and written with one call."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.programs.registry import built, c, ints, program, t


@program(t(3), t(3), c(3))
def lists_written_at_once(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    first = torch._foreach_add([x, y], 1)
    second = torch._foreach_mul(first, [z, z])
    torch._foreach_add_(second, first)
    torch._foreach_addcmul_(second, first, first, 0.5)
    return (*second, *torch._foreach_norm(second), *torch._foreach_maximum(first, second))


@program(t(3), ints(5, 3))
def lists_of_floats_and_integers_under_no_grad(x: Tensor, i: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        first, second = torch._foreach_add([x * 1, i * 2], [x, i])
        third = [x * 3, i * 3]
        torch._foreach_add_(third, [x, i])
    return first * x, second, *third


@program(c(3), c(3), train=False)
def inputs_written_at_once(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_add_([x, y], 1)
    torch._foreach_lerp_([x], [y], 0.5)
    torch._foreach_zero_([y])
    return x * 1


@program(t(3, 4))
def views_whose_list_form_has_no_derivative(x: Tensor) -> tuple[Tensor, ...]:
    y, empty = x * 1, x[:0].sin()
    torch._foreach_zero_([y[0], y[2]])
    torch._foreach_zero_([empty, empty[:, 1]])
    return y, y.exp(), empty


@program(t(3, 4))
def views_written_at_once(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    top, rest = y[0], y[1:]
    torch._foreach_exp_([top, rest])
    return y, top, rest


@built(t(3, 4))
def parameters_decayed_at_once() -> nn.Module:
    class Decayed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                torch._foreach_mul_(list(self.parameters()), 0.9)
            return self.linear(x)

    return Decayed()


@program(t(6))
def leaky_relu_randomised_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    part = y[1:4]
    F.rrelu_(part, 0.1, 0.4, training=True)
    return y, part

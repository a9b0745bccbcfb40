"""Yes or no that a program asks of values: answered by the example, and asserted by every graph.

The comparison hides floats while a program is captured, so these ask of flags and integers.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.programs.own_backward import IN_A_FILE
from tests.programs.registry import built, c, flags, ints, made, program, t

NONE, ALL = made(lambda: torch.zeros(3, 4, dtype=torch.bool)), made(lambda: torch.ones(4) > 0)


@program(t(3, 4), flags(3, 4), ALL, loss=0)
def a_mask_that_may_be_all_ones(x: Tensor, mask: Tensor, other: Tensor) -> Tensor:
    y = x * 2 if mask.all() else x * mask
    return y.sum() if other.all() else (y * other).sum()


@program(t(3, 4), NONE)
def asked_in_every_way(x: Tensor, mask: Tensor) -> Tensor:
    assert not mask.any()
    torch._assert((~mask).all(), "none")
    y = x.sin() if torch.is_nonzero(mask.sum()) else x.cos()
    y = y * 2 if torch.equal(mask, ~mask) else y * 3
    y = y + 1 if torch.allclose(mask.float(), mask.double().float() + 1e-12) else y - 1
    y = y * 5 if True in mask else y * 7
    while mask.any():
        y = y.exp()
    return y if not mask.any().item() else -y


@program(t(3, 4), ints(5, 4))
def asked_of_what_it_has_written(x: Tensor, counts: Tensor) -> Tensor:
    y = x * 2 if (counts < 5).all() else x
    counts.add_(5)
    view = counts.view(2, 2)[0]
    view.mul_(2)
    return y * 3 if (counts[:2] > 9).all() and not (counts[2:] > 9).any() else y


class Chooses(torch.autograd.Function):
    """Its forward asks, and another Function inside it asks again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(x, mask)
        y = x.exp() if mask.all() else x.sin()
        return y * 2 if mask.any() else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, mask = ctx.saved_tensors
        return grad * x.cos() * mask, None


class Outer(torch.autograd.Function):
    """Asks, and calls the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor) -> Tensor:
        return Chooses.apply(x, mask) if mask.any() else x.clone()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * 3, None


@program(t(3, 4), flags(3, 4), may_refuse=IN_A_FILE)
def asked_inside_a_function(x: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = Chooses.apply(x * 2, mask)
    return y if mask.any() else -y


@program(t(3, 4), flags(3, 4), may_refuse=IN_A_FILE)
def asked_inside_a_function_inside_another(x: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = Outer.apply(x * 2, mask)
    return y + x


@program(t(3, 4), ints(4, 4))
def asked_inside_composites(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    first = torch.cov(x, fweights=weights + 1)
    return first, torch.cov(x.detach() * 2, fweights=weights + 1)


@program(t(3, 4), flags(3, 4), loss=0)
def asked_under_other_modes(x: Tensor, mask: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2 if mask.float().mean() > 2 else x * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ x.T if (mask.float() @ mask.float().T).sum() > 0 else x @ x
    return (y.sum() + z.float().sum()) * (2 if mask.view(-1)[::2].any() else 3)


@built(t(3, 4), flags(3, 4), loss=0)
def asked_by_each_layer() -> nn.Module:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return F.dropout(y * mask, 0.5) if not mask.all() else y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(3))
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))
            self.calls: Tensor

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            self.calls += 1
            for layer in self.layers:
                x = layer(x, mask)
            return x.sum() * 2 if self.calls > 0 else x.sum()

    return Net()


@program(t(3, 4), flags(3, 4), loss=0)
def asked_inside_a_checkpoint(x: Tensor, mask: Tensor) -> Tensor:
    def run(y: Tensor) -> Tensor:
        return (y.sin() if mask.any() else y.cos()).exp()

    y: Tensor = checkpoint(run, x, use_reentrant=False)
    return y.sum()


@program(c(3, 4), flags(3, 4), train=False)
def asserted_by_the_program(x: Tensor, mask: Tensor) -> Tensor:
    torch._assert_async(mask.any())
    torch._assert_async(mask[0, 0], "the first is set")
    return x * mask

"""Programs that an operator holds (`torch.cond` and its like); others' operators that write."""

import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.programs.registry import N, built, c, program, t


@torch.library.custom_op("foretrace_zoo::add_scaled", mutates_args={"into"})
def add_scaled(x: Tensor, into: Tensor, scale: float = 2.0) -> None:
    """Writes, and returns nothing."""
    into.add_(x * scale)


@torch.library.custom_op("foretrace_zoo::decay", mutates_args={"state"})
def decay(x: Tensor, state: Tensor) -> Tensor:
    """Writes, and returns something else."""
    state.mul_(x)
    return state.sum()


@decay.register_fake
def _(x: Tensor, state: Tensor) -> Tensor:
    return x.new_empty(())


@program(t(N, 3), t(3))
def branches_on_data(x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a, b: a * b, lambda a, b: (a - b).sin(), (x, y)) * 2


@program(t(2, 3), t(3), t(3))
def branches_that_close_over(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    def on(a: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            still = a.exp()
        made = (a * y).add_(1)
        made.mul_(still)
        return made, a.sum()

    def off(a: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cond(y.sum() > 0, lambda: (a - y, a.mean()), lambda: (a.cos(), a.max()), ())

    first, second = torch.cond(x.sum() > 0, on, off, (x,))
    return first * z, second


@program(t(2, 3), t(3, 3))
def branches_with_autocast_inside(x: Tensor, w: Tensor) -> Tensor:
    def on(a: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (a @ w).float()

    return torch.cond(x.sum() > 0, on, lambda a: a @ w, (x,)) @ w


@program(c(2, 3), c(3, 3), train=False)
def branches_under_autocast(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.cond(x.sum() > 0, lambda: x @ w, lambda: (x @ w) @ w, ()) @ w


@program(t(2, 3), t(3))
def branches_with_nested_operands(x: Tensor, y: Tensor) -> Tensor:
    operands = ({"x": x}, [y])
    return torch.cond(x.sum() > 0, lambda a, b: a["x"] * b[0], lambda a, b: a["x"] - b[0], operands)


@program(t(2, 3), t(2, 3))
def branches_where_one_gives_no_gradient(x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda a, b: a * 2, lambda a, b: a * b, (x, y))


@built(t(2, 3))
def branches_of_modules() -> nn.Module:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, self.wide, self.norm, (x,))

    return Gated()


@program(t(4, 2, 2), t(2, 2))
def rows_mapped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    first, second = map_rows(lambda row, w: (row * w, (row @ w).cos_().view(4)), x, y)
    return first, second


@program(t(2, 2), t(4, 2, 2), t(2, 2))
def rows_scanned(first: Tensor, rows: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        new = (carry @ row + row).tanh() * w
        return new, (new * carry).sin()

    last, each = scan(step, first, rows)
    return last, each


@program(c(3), train=False)
def rounds_while_small(x: Tensor) -> Tensor:
    count, y = while_loop(
        lambda i, y: (i < 5) & (y.abs().sum() < 9),
        lambda i, y: (i + 1, y * 1.5),
        (x.new_zeros(()), x),
    )
    return y + count


@program(c(3), c(2, 3), c(3), train=False)
def operators_of_others_that_write(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    add_scaled(x, y[0])
    w = x * y.sum()
    add_scaled(w, z, scale=3.0)
    return w + z, decay(w, z)


@program(t(3), c(3))
def written_by_others_over_what_is_followed(x: Tensor, z: Tensor) -> Tensor:
    w = z * x
    add_scaled(x, w)
    return (w * x).sum()

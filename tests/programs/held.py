"""Programs that an operator holds (`torch.cond` and its like); others' operators that write."""

from importlib import import_module
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, _higher_order_ops as higher_order_ops, nn
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop, while_loop_stack_output_op
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

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


if find_spec("torch._higher_order_ops.switch"):  # from torch 2.14 on
    switch = import_module("torch._higher_order_ops.switch").switch
    flex_gemm = import_module("torch._higher_order_ops.flex_gemm").flex_gemm

    @program(t(N, 3), t(3))
    def one_of_several_on_data(x: Tensor, y: Tensor) -> Tensor:
        which = (x.sum() * 3).long()
        several = (lambda a: a * y, lambda a: (a - y).sin(), lambda a: (a * 2) @ y.diag())
        return switch(which, several, (x,)) * 2

    @program(t(2, 3), t(3))
    def one_of_several_with_nested_operands(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def first(a: dict[str, Tensor], b: Tensor) -> tuple[Tensor, Tensor]:
            pair = [lambda: (a["x"] - b, b.mean()), lambda: (a["x"].cos(), b.max())]
            return switch(b.sum() > 0, pair)

        def other(a: dict[str, Tensor], b: Tensor) -> tuple[Tensor, Tensor]:
            return (a["x"] * b).add_(1), b.sum()

        return switch(x.long().sum(), (first, other, first), ({"x": x}, y))

    @program(c(2, 3), c(3, 4), train=False)
    def a_matmul_with_its_epilogue(x: Tensor, y: Tensor) -> Tensor:
        return flex_gemm(torch.mm, (x, y), lambda found: (found + 1).relu())


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


@program(t(2, 3), t(4, 2, 3), t(3, 3), loss=None)
def rows_scanned_by_a_layer(first: Tensor, rows: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """With views: torch's derivative makes copies of them, forward and backward."""

    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        new = F.linear(carry, w) * row.t().tanh().t()
        return new.cos(), (new.t() @ carry)[1:].sum(0)

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


@program(c(3), c(3), c(2, 3), train=False)
def rounds_of_three_tensors(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    def turn(i: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return i + 1, (y * w).sin() + x, (z * y).cos() * 0.5

    count, last, rest = while_loop(
        lambda i, y, z: (i < 4) & (z.sum() < 1e6), turn, (x.new_zeros(()), x * 2, y.exp())
    )
    return last * count, rest + last


@program(c(3), c(3), train=False)
def rounds_that_are_none(x: Tensor, w: Tensor) -> Tensor:
    (last,) = while_loop(lambda y: y.sum() < -1e6, lambda y: (y * w,), (x * 2,))
    return last.cos()


@program(c(3), c(3), train=False)
def rounds_before_and_after(x: Tensor, y: Tensor) -> Tensor:
    (first,) = while_loop(lambda a: a.sum() < 3, lambda a: (a + y.exp(),), (x * 1,))
    (second,) = while_loop(lambda a: a.norm() > 1, lambda a: (a / 2,), (first * x,))
    return first * second


@program(c(3), train=False)
def rounds_as_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    count, rows = while_loop_stack_output_op(
        lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (x.new_zeros(()), x), ()
    )
    return count.sum(), rows[1:].sin()


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


def causal(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


@program(c(2, 2, 8, 4), c(2, 2, 8, 4), c(2, 2, 8, 4), t(2, 8), t(3, 15))
def attention_with_scores_changed(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, table: Tensor
) -> Tensor:
    w = table.exp()

    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return s * slopes[h, m].sigmoid() + w[0, m - n + 7].tanh()

    out: Tensor = flex_attention(q, k, v, score)
    return out * 2


@program(c(2, 4, 8, 4), c(2, 2, 8, 4), c(2, 2, 8, 6), t(8))
def attention_masked_for_groups(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor | None]:
    document = torch.arange(8) // 3

    def mask(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return (document[m] == document[n]) & causal(b, h, m, n)

    made = create_block_mask(mask, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)
    aux = AuxRequest(lse=True)
    out, more = flex_attention(
        q, k, v, lambda s, b, h, m, n: s + bias[n], made, 0.3, enable_gqa=True, return_aux=aux
    )
    return out, more.lse


@program(t(2, 2, 4, 3), t(2, 2, 5, 3), t(2, 2, 5, 3), t(5))
def attention_by_the_operator(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return torch.where(m >= n, s.sin(), s * bias[n] * h)

    none = q.new_zeros(1, 1, 1, dtype=torch.int32)
    blocks = (none, none[None]) * 4
    mask = (4, 5, *blocks, None, None, None, None, 128, 128, lambda b, h, m, n: m + 2 >= n)
    q, k = q.transpose(0, 1), k.transpose(0, 1)
    out, rows, _ = torch.ops.higher_order.flex_attention(
        q.cos(), k, v.transpose(0, 1), score, mask, 0.5, {}
    )
    return out, rows


@program(c(2, 2, 8, 4), c(8), train=False)
def attention_unfollowed(q: Tensor, bias: Tensor) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return s + bias[m] * (m - n).abs() - h

    with torch.no_grad():
        return flex_attention(q, q.sin(), q, score)  # type: ignore[return-value]


@built(c(2, 6, 4))
def attention_in_a_module() -> nn.Module:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.out = nn.Embedding(11, 2), nn.Linear(4, 4)
            self.mask = create_block_mask(causal, None, None, 6, 6, device="cpu")

        def forward(self, x: Tensor) -> Tensor:
            x = x.view(2, 6, 2, 2).transpose(1, 2)
            table = self.bias.weight

            def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
                return s + table[m - n + 5, h]

            made: Tensor = flex_attention(x, x, x, score, self.mask)
            return self.out(made.transpose(1, 2).reshape(2, 6, 4))  # type: ignore[no-any-return]

    return Attends()


@program(c(1, 2, 8, 4, dtype=torch.float16), t(8, dtype=torch.float16))
def attention_in_half_precision(q: Tensor, bias: Tensor) -> Tensor:
    def score(s: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return torch.where(m >= n, s * bias[n], -1.2345) + s.float().sin()

    return flex_attention(q, q, q, score)  # type: ignore[return-value]


@program(c(3), train=False)
def operators_of_torchs_tools(x: Tensor) -> Tensor:
    x = strict_mode(lambda y: (y.sin() * 2,), (x,))[0]
    x = higher_order_ops.hints_wrapper(lambda y: y.cos(), (x,), {}, {"hint": 1})
    first, second = foreach_map(torch.add, [x, x], [x, x * 2])
    made: Tensor = out_dtype(torch.ops.aten.mul.Tensor, torch.float64, first, second)
    return made

"""Programs whose Python asks data: each with inputs for every way through it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Inputs = tuple[Any, ...]
FLAT = ("export", "aten")
"""Cuts of programs with nothing to differentiate"""


@dataclass(frozen=True)
class Branching:
    """A program, one call for each way through it, and how many conds its graph has."""

    build: Callable[[], Callable[..., Any]]
    calls: list[Inputs]
    conds: int = 1
    options: dict[str, Any] = field(default_factory=dict)


BRANCHING: dict[str, Branching] = {}


def drawn(*shape: int) -> Tensor:
    """The same numbers each time."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


UP, DOWN = drawn(3, 3).abs() + 0.1, -drawn(3, 3).abs() - 0.1
W = drawn(3, 3)


def follow(*tensors: Tensor) -> Inputs:
    """Leaves that want a gradient."""
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


TWO = [follow(UP, W), follow(DOWN, W)]
FOUR = [follow(x, w) for x in (UP, DOWN) for w in (W.abs(), -W.abs())]


def way(*calls: Inputs, conds: int = 1, **options: Any) -> Callable[[Any], Any]:
    """Register the decorated function, or what it builds if it is a class."""

    def add(made: Any) -> Any:
        build = made if isinstance(made, type) else lambda: made
        BRANCHING[made.__name__] = Branching(build, list(calls), conds, options)
        return made

    return add


# ---- what differs -------------------------------------------------------------------------------


@way(*TWO)
def two_sides(x: Tensor, w: Tensor) -> Tensor:
    h = x @ w
    if x.sum() > 0:
        y = h * 2
    else:
        y = (h - 1).sin()
    return (y * w).sum()


@way(*TWO)
def one_side(x: Tensor, w: Tensor) -> Tensor:
    norm = x.norm()
    y = x @ w
    if x.sum() > 0:
        y = y / (norm + 1)
    return y.sin().sum()


@way(*FOUR)
def nested(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        if w.sum() > 0:
            y = x * w
        else:
            y = x - w
        y = y.cos()
    else:
        y = x + w * 3
    return (y * x).sum()


@way(*FOUR, conds=3)
def one_after_the_other(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 0:
        y = y * 2
    if w.sum() > 0:
        y = y.exp()
    else:
        y = y.sin() * w
    if y.mean() > 1:
        y = y - 1
    return y.sum()


@way(*TWO, conds=3)
def in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = x @ w
        if x.sum() > 0:
            x = x.tanh()
            continue
        x = x + 1
    return x.sum()


@way(*[(*follow(UP * scale), W) for scale in (0.01, 1, 9)])
def until_it_settles(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        new = (x @ w).tanh()
        if (new - x).abs().max() < 1:
            break
        x = new
    return (x * 2).sum()


@way(*TWO, follow(UP, -W))
def returns_early(x: Tensor, w: Tensor) -> Tensor:
    y = x @ w
    if (x > 0).all():
        return y.sum()
    y = y.relu() + w
    if (y > 1).any():
        return y.mean()
    return (y * x).sum()


@way(*TWO, loss=None)
def gives_several(x: Tensor, w: Tensor) -> Any:
    out = {"y": x * w}
    if x.sum() > 0:
        out["z"] = out["y"].sin()
    else:
        out["z"] = out["y"].cos().neg()
    return out["z"].sum(), out


@way(*TWO)
def numbers_differ(x: Tensor, w: Tensor) -> Tensor:
    scale = 2.0 if x.sum() > 0 else 3.0
    return (x * scale + w * torch.tensor(scale)).sum()


@way(*TWO, conds=2)
def other_questions(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if torch.equal(x.abs(), x) and torch.allclose(w, w):
        y = y + x
    if (x > 0).any().item():
        y = y * 2
    return y.sum()


@way(*TWO)
def asks_the_same_twice(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 0:
        y = y + 1
    z = y.sin()
    if x.sum() > 0:
        z = z * 2
    return z.sum()


@way(*TWO)
def the_larger(x: Tensor, w: Tensor) -> Tensor:
    return max((x * w).sum(), (x - w).pow(2).sum())


@way(*TWO)
def raises_on_one_side(x: Tensor, w: Tensor) -> Tensor:
    if not torch.isfinite(x).all():
        raise ValueError("not finite")
    if x.sum() > 0:
        x = x * w
    return (x * w).sum()


# ---- writes, views, history ---------------------------------------------------------------------


@way(*TWO)
def writes_inside(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 0:
        y.add_(1)
        y[0].mul_(2)
    else:
        y.mul_(3)
    y.sub_(w)
    return y.sum()


@way(*TWO)
def another_name_is_written(x: Tensor, w: Tensor) -> Tensor:
    h = x * w
    y = h if x.sum() > 0 else h * 2
    y.add_(1)
    return (h + y * w).sum()


@way((*follow(UP), torch.zeros(3)), (*follow(DOWN), torch.zeros(3)))
def writes_an_argument(x: Tensor, count: Tensor) -> Tensor:
    y = x * 2
    if x.sum() > 0:
        count.add_(1)
        y = y.sin()
    return y.sum() + count.sum()


@way((UP, torch.zeros(3)), (DOWN, torch.zeros(3)), cuts=FLAT)
def returns_what_it_writes(x: Tensor, count: Tensor) -> Any:
    if x.sum() > 0:
        count.add_(x[0])
    return x + 1, count


@way(*TWO)
def views_of_what_is_outside(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.t()
    else:
        y = (x * w).t()
    return (y + w).sum()


@way(*TWO)
def views_that_lie_otherwise(x: Tensor, w: Tensor) -> Tensor:
    y = x[:, 0] if x.sum() > 0 else w[1]
    return (y * 2).sum() + (x * w).sum()


@way(*TWO)
def views_of_a_result(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x * w
        v = y[0]
    else:
        y = x - w
        v = y[1] * 2
    return (y * 2).sum() + v.sum()


@way(*TWO)
def without_gradient_inside(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        with torch.no_grad():
            scale = x.abs().max()
    else:
        scale = w.detach().abs().max()
    return (x * scale * w).sum()


class Square(torch.autograd.Function):
    """x * x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * 2 * x


@way(*TWO)
def with_functions(x: Tensor, w: Tensor) -> Tensor:
    y: Any = Square.apply(x)
    if x.sum() > 0:
        y = Square.apply(y * w)
    else:
        y = y - w
    return Square.apply(y).sum()  # type: ignore[no-any-return, no-untyped-call]


@way(*TWO)
def in_a_checkpoint(x: Tensor, w: Tensor) -> Tensor:
    def inside(x: Tensor, w: Tensor) -> Tensor:
        y = (x @ w).sin()
        return y * 2 if x.sum() > 0 else y.exp()

    y: Tensor = checkpoint(inside, x, w, use_reentrant=False)
    return (y * w).sum()


@way(*TWO)
def holds_a_cond(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = torch.cond(w.sum() > 0, lambda a: a * 2, lambda a: a.sin(), (x,)) * w
    else:
        y = x + w
    return y.sum()


@way(*TWO)
def gradients_add_up(x: Tensor, w: Tensor) -> Tensor:
    h = x * w
    if h.sum() > 0:
        y = h * w + h.sin() + (h * 3).cos()
    else:
        y = h.cos() * h * h
    return (y * h + h.exp() + x).sum()


@way(*TWO)
def weights_used_on_both_sides(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = (x @ w) @ w
    else:
        y = (w @ x) @ w + w
    return (y @ w).sum() + (w * x).sum()


@way(*TWO)
def one_tensor_under_two_names(x: Tensor, w: Tensor) -> Tensor:
    h = x * w
    y = h if x.sum() > 0 else h.sin()
    return (y.exp() + h * 3 + y.cos() * h + x).sum()


@way(*TWO)
def saved_and_written(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 0:
        y = y + 1
        y.mul_(w)
    else:
        y.add_(2)
    y.mul_(3)
    return (y * x).sum()


# ---- sizes that data decides --------------------------------------------------------------------

MIXED = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [-1.0, -2.0, 3.0]])


@way(follow(MIXED), follow(-MIXED.abs()), follow(W))
def means_of_what_there_is(x: Tensor) -> Tensor:
    there, loss = x > 0.5, (x * 2).sum()
    if there.any():
        loss = loss + x[there].mean()
    return loss


@way(follow(MIXED), follow(-MIXED.abs()))
def sizes_on_both_sides(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x[x > 0].sum()
    else:
        y = x[x < 0].sin().sum()
    return y * 2


@way(follow(MIXED), follow(-MIXED.abs()), follow(W))
def sizes_after_both_sides(x: Tensor) -> Tensor:
    if x.sum() > 0:
        x = x * 2
    else:
        x = x[x < 0].sum() + x
    return x[x > 0.5].sum() + x.sum()


NONE = torch.zeros(3, 3) - 1


@way(follow(MIXED), follow(NONE), follow(W))
def counts_compared(x: Tensor) -> Tensor:
    count, y = (x > 0.5).sum().item(), x * 2
    if count > 3:
        y = y.sin()
    return y.sum()


@way(follow(MIXED), follow(NONE), follow(W))
def sizes_compared(x: Tensor) -> Tensor:
    found, y = x[x > 0.5], x.sum()
    if found.shape[0] > 0:
        y = y + found.mean()
    return y


# ---- modules ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Asks what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if y.sum() > 0:
            return y.sin()
        return y * 2


@way(*[follow(x) for x in (UP, DOWN, W)], conds=3)
class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum()  # type: ignore[no-any-return]


class Gate(nn.Module):
    """Answers for who calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, bool]:
        h = self.linear(x)
        return h, bool(h.sum() > 0)


@way(*[follow(x) for x in (UP * 3, DOWN * 3, W)])
class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.linear, self.norm = Gate(), nn.Linear(3, 3), nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        h, on = self.gate(x)
        h = self.norm(h)
        h = self.linear(h).relu() if on else self.linear(h * 2)
        return self.norm(h).pow(2).sum()  # type: ignore[no-any-return]


@way(*[follow(x) for x in (UP, DOWN)])
class Counts(nn.Module):
    """Keeps a mean of what it is trained on, where that is large."""

    mean: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        if x.sum() > 0:
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            self.count += 1
        return (y - self.mean).sum()


@way(*[follow(x) for x in (UP, DOWN)], conds=2)
class Normed(nn.Module):
    """Has batch norm on one side: statistics, and a count of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y = self.norm(y) if x.sum() > 0 else y * self.norm.weight + self.norm.bias
        return y.pow(2).sum()

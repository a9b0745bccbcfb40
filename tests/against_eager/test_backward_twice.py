"""A second backward through the same ops runs where eager's does, and is refused where not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops.scan import scan
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import foretrace


class Doubles(torch.autograd.Function):
    """Saves nothing, and asks for nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Saves(Doubles):
    """Saves what it does not ask for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2


class Asks(Doubles):
    """Asks for what it has not saved."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        assert not ctx.saved_tensors
        return g * 2


def in_place(x: Tensor) -> Tensor:
    return (x * 1).sin_()


def through_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y[0].mul_(2)
    return y


def more(x: Tensor) -> Tensor:
    return x + 1


def less(x: Tensor) -> Tensor:
    return x - 1


def scanned(x: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return carry + row.sin(), carry * row

    return scan(step, x[0].clone(), x)[1]


OF: dict[str, Callable[[Tensor], Any]] = {
    "a number times": lambda x: x * 2,
    "divided by a number": lambda x: x / 2,
    "a sum with a number": lambda x: x + 2,
    "a power": lambda x: x**2,
    "first power": lambda x: x**1,
    "views": lambda x: x.t()[1:].reshape(-1),
    "expanded": lambda x: x.expand(2, 4, 3),
    "indexed": lambda x: x[torch.tensor([0, 2])],
    "chosen": lambda x: torch.where(x.detach() > 0, x, -x),
    "joined": lambda x: torch.cat([x, x]),
    "relu": torch.relu,
    "clamped": lambda x: x.clamp(min=0),
    "times what needs none": lambda x: x * torch.ones(4, 3),
    "linear": lambda x: F.linear(x, torch.ones(2, 3)),
    "layer norm": lambda x: F.layer_norm(x, (3,)),
    "in place": in_place,
    "through a view": through_a_view,
    "cond": lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
    "cond that saves nothing": lambda x: torch.cond(x.sum() > 0, more, less, (x,)),
    "map": lambda x: mapped(lambda row: row.sin() * row, x),
    "scan": scanned,
    "checkpoint": lambda x: checkpoint(lambda x: x.sin() * x, x, use_reentrant=False),
    "checkpoint that saves nothing": lambda x: checkpoint(lambda x: x + 1, x, use_reentrant=False),
    "Function": Doubles.apply,
    "Function that saves": Saves.apply,
    "Function that asks": Asks.apply,
}  # fmt: skip


RUN = {
    "a sum with a number", "views", "expanded", "joined", "checkpoint that saves nothing",
    "Function", "Function that saves", "scan",
}  # fmt: skip
"""Those of which eager's second backward runs"""


@pytest.mark.parametrize("name", OF)
def test_as_in_eager(name: str) -> None:
    def twice(x: Tensor) -> Tensor:
        y = OF[name](x).sum()
        return grad(y, x)[0] + grad(y, x)[0]

    def kept(x: Tensor) -> Tensor:
        y = OF[name](x).sum()
        return grad(y, x, retain_graph=True)[0] + grad(y, x)[0]

    x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_()
    assert torch.equal(foretrace.capture(kept, (x,)).cut("aten")(x), kept(x))
    if name in RUN:
        assert torch.equal(foretrace.capture(twice, (x,)).cut("aten")(x), twice(x))
        return
    with pytest.raises(RuntimeError, match="second time"):
        twice(x)
    with pytest.raises(foretrace.Refusal, match="a second time") as refused:
        foretrace.capture(twice, (x,))
    assert refused.value.kind == "graph freed"


@pytest.mark.parametrize("cut", ["export", "aten", "step"])
def test_a_view_of_what_it_wrote_shares_the_input_s_memory(cut: Any) -> None:
    """After a backward of the program's own: a cut returned it in memory of its own."""

    def fn(w: Tensor, x: Tensor) -> Tensor:
        x.copy_(w * 2)
        row = x[0]
        row.sum().backward()
        return row

    def given() -> tuple[Tensor, Tensor]:
        return torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)

    (w, x), call = given(), foretrace.capture(fn, given()).cut(cut)
    row = call(w, x)
    with torch.no_grad():
        x[0].add_(5)
    assert row.tolist() == [7.0, 7.0, 7.0]
    assert row.requires_grad

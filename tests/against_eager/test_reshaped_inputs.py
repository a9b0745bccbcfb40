"""Operators in place that give an input another shape: the caller's tensor has it afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.bits import differences
from tests.support.turns import crossed


def turned(x: Tensor, w: Tensor) -> Any:
    return x.t_().mean() * w.sin()


def given_back(x: Tensor, w: Tensor) -> Any:
    return x.unsqueeze_(1), w * 2


def viewed(x: Tensor, w: Tensor) -> Any:
    before = x[0]
    x.transpose_(0, 1)
    return before, x[1], (x[0].sum() * w).sin()


def written(x: Tensor, w: Tensor) -> Any:
    x.mul_(2).t_().add_(1)
    x.unsqueeze_(0)
    return x.sum() * w


def saved_after(x: Tensor, w: Tensor) -> Any:
    x.t_()
    return (x.exp() @ (x.sum() * w)).sin(), (x * x.detach().sum()).sum() * w.cos()


def saved_before(x: Tensor, w: Tensor) -> Any:
    y = x * w
    x.unsqueeze_(0)
    return y


def by_strides(x: Tensor, w: Tensor) -> Any:
    x.as_strided_((2, 2), (1, 2))
    return x.sum() * w.sin()


def back_again(x: Tensor, w: Tensor) -> Any:
    x.t_().t_().squeeze_(0)
    return x.sum() * w.sin()


PROGRAMS = [
    turned, given_back, viewed, written, saved_after, saved_before, by_strides, back_again
]  # fmt: skip
ROUTES: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "export": lambda fn, args: foretrace.capture(fn, args, verify=True).cut("export"),
    "compile": lambda fn, args: foretrace.compile(fn, fullgraph=True),
    "in part": lambda fn, args: foretrace.compile(fn),
    "open sizes": lambda fn, args: foretrace.compile(fn, fullgraph=True, dynamic=True),
    "a backend": lambda fn, args: foretrace.compile(
        fn, backend=lambda module, _: module, fullgraph=True
    ),
}


def case(rows: int, *, of_more: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(rows)
    whole = torch.randn(2 * rows, 4)
    return (whole[::2] if of_more else whole[:rows].clone()), torch.randn(rows, 4).requires_grad_()


def ran(fn: Callable[..., Any], x: Tensor, w: Tensor) -> list[Any]:
    """What a call gives and leaves: results, gradients, the input, whether memory is shared."""
    result = fn(x, w)
    outputs = list(result) if isinstance(result, tuple) else [result]
    followed = [each.sum() for each in outputs if each.requires_grad]
    try:
        gradients: list[Any] = list(torch.autograd.grad(followed, [w]))
    except RuntimeError as error:
        gradients = ["modified by an inplace operation" in str(error)]
    memory = [each.data_ptr() == x.data_ptr() for each in outputs]
    return [*outputs, *gradients, x, memory, [each is x for each in outputs]]


OF_WHAT = [
    pytest.param(fn, of_more, id=f"{fn.__name__}-{of_more}")
    for of_more in (False, True)
    for fn in PROGRAMS
]


@pytest.mark.parametrize(("fn", "of_more", "route"), crossed(OF_WHAT, ROUTES))
def test_as_eager(fn: Callable[..., Any], route: str, of_more: bool) -> None:
    run = ROUTES[route](fn, case(3, of_more=of_more))
    for rows in (3, 3) if route == "export" else (3, 4, 3, 1, 5):
        if (fn, route) == (saved_before, "a backend"):
            with pytest.raises(foretrace.Refusal, match="writes over afterwards"):
                run(*case(rows, of_more=of_more))
            continue
        eager, found = (ran(each, *case(rows, of_more=of_more)) for each in (fn, run))
        assert list(differences(eager, found, "")) == []


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_joint_and_pair(fn: Callable[..., Any]) -> None:
    program = foretrace.capture(fn, case(3), verify=True)
    if fn is saved_before:
        with pytest.raises(foretrace.Refusal, match="writes over afterwards"):
            program.cut("joint")
        return
    (x, w), (y, v), (z, u) = case(3), case(3), case(3)
    result = fn(x, w)
    outputs = list(result) if isinstance(result, tuple) else [result]
    tangents = [torch.ones_like(each) for each in outputs if each.requires_grad]
    followed = [each for each in outputs if each.requires_grad]
    (expected,) = torch.autograd.grad(followed, [w], tangents)
    _, found = program.cut("joint")(y, v, tangents=tangents)
    _, halves = run_pair(*program.pair(), (z, u), {}, tangents)
    for gradients, left in ((found, y), (halves, z)):
        assert list(differences([expected, x], [gradients["w"], left], "")) == []


def test_the_caller_that_has_saved_it_is_told() -> None:
    for run in (turned, foretrace.compile(turned, fullgraph=True),
                foretrace.capture(turned, case(3)).cut("export")):  # fmt: skip
        x, w = case(3)
        y = x * w
        run(x, w)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


class Turning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).view(3, 4))
        self.kept = torch.arange(8.0).view(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.kept.t_()
        return self.table.t_().sum(0) * x + self.kept[0, 0]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_what_a_module_holds(fullgraph: bool) -> None:
    eager, ours = Turning(), Turning()
    compiled = foretrace.compile(ours, fullgraph=fullgraph)
    for size in (3, 4, 3, 4):
        x = torch.randn(size)
        assert list(differences(eager(x), compiled(x), "")) == []
        left = [[each.table, each.kept] for each in (eager, ours)]
        assert list(differences(*left, "")) == []


def test_a_side_of_a_question() -> None:
    def asks(x: Tensor) -> Tensor:
        return x.t_() * 2 if x.sum() > 0 else x * 3

    compiled = foretrace.compile(asks, fullgraph=True)
    for sign in (1, -1, 1, -1):
        x, y = torch.ones(3, 3) * sign, torch.ones(3, 3) * sign
        assert list(differences([asks(x), x], [compiled(y), y], "")) == []
    with pytest.raises(foretrace.Refusal, match="another shape"):
        foretrace.capture(asks, (torch.ones(3, 3),), branches="both")

"""Memory around operators that hold programs: what they save, and what they leave behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import foretrace
from tests.support.bits import same_bits

X = torch.randn(3, 4)


def by_cond(v: Tensor) -> Tensor:
    return torch.cond(v.detach().sum() > -99, lambda a: a.sin(), lambda a: a.cos(), (v,))


def by_scan(v: Tensor) -> Tensor:
    return scan(lambda c, r: (c * r, c.sin() * r), v[0], v)[1]


def by_map(v: Tensor) -> Tensor:
    return map_rows(lambda r: r.sin() * r, v)  # type: ignore[no-any-return]


HELD = [by_cond, by_scan, by_map]


def program(held: Callable[[Tensor], Tensor], write: Callable[[Tensor], object]) -> Any:
    def fn(x: Tensor) -> Tensor:
        v = x * 1
        y = held(v)
        write(v)
        return y.sum() + v.sum()

    return fn


def gradient(fn: Callable[[Tensor], Tensor]) -> Tensor:
    x = X.clone().requires_grad_()
    fn(x).backward()
    assert x.grad is not None
    return x.grad


def routes(fn: Any) -> list[Callable[[Tensor], Tensor]]:
    given = foretrace.capture(fn, (X.clone().requires_grad_(),), verify=True)
    return [given.cut("export"), foretrace.compile(fn)]


@pytest.mark.parametrize("held", HELD)
def test_a_write_that_autograd_does_not_count(held: Any) -> None:
    """The backward runs the programs again, from what memory holds by then."""
    fn = program(held, lambda v: v.data.add_(1))
    eager = gradient(fn)
    assert not same_bits(eager, gradient(program(held, lambda v: None)))
    assert all(same_bits(gradient(each), eager) for each in routes(fn))
    with pytest.raises(foretrace.Refusal, match="runs its functions again"):
        foretrace.capture(fn, (X.clone().requires_grad_(),)).cut("joint", loss=0)


@pytest.mark.parametrize("held", [by_cond, by_map])
def test_a_write_that_autograd_counts(held: Any) -> None:
    """Not so by scan, which saves past the counter: eager's backward reads the new content."""
    fn = program(held, lambda v: v.add_(1))
    for each in (fn, *routes(fn)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(each)
    with pytest.raises(foretrace.Refusal, match="writes over afterwards"):
        foretrace.capture(fn, (X.clone().requires_grad_(),)).cut("joint", loss=0)


class Leaves(nn.Module):
    """A function of a cond binds an attribute to what it makes."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        def on(a: Tensor) -> Tensor:
            self.kept = a * 2
            return a.sin()

        return torch.cond(x.sum() > -99, on, lambda a: a.cos(), (x,))


def uses(x: Tensor) -> Tensor:
    made = list[Tensor]()

    def on(a: Tensor) -> Tensor:
        made.append((a * 2)[0])
        return a.sin()

    return torch.cond(x.sum() > -99, on, lambda a: a.cos(), (x,)) + made[0]


def carries(x: Tensor) -> Tensor:
    made = list[Tensor]()

    def step(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        made.append(c)
        return c * r, c + r

    return scan(step, x[0], x)[1] + made[0]


@pytest.mark.parametrize("build", [Leaves, lambda: uses, lambda: carries])
@pytest.mark.parametrize(
    "entry",
    [lambda fn: foretrace.capture(fn, (X,)), lambda fn: foretrace.compile(fn, fullgraph=True)(X)],
)
def test_what_a_program_makes_is_of_no_use_outside(build: Any, entry: Any) -> None:
    """No op outside makes it, so that nothing could be computed of it."""
    fn = build()
    with pytest.raises(foretrace.Refusal, match="has left behind") as refusal:
        entry(fn)
    assert refusal.value.kind == "escaped"
    assert vars(fn).get("kept") is None

"""Programs that are captured and called under autocast: what it casts is an op, cast once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import foretrace
from tests.support.pairs import PairCut


def multiplied(x: Tensor) -> Tensor:
    return torch.bmm(torch.bmm(x, x.mT), x).float().sum()


def attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x).float().square().sum()


def by_autograd(fn: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fn(x)
    return loss.detach(), torch.autograd.grad(loss, x)[0]


def routes(fn: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[Tensor, Any]]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = foretrace.capture(fn, (x,))
        cuts = [program.cut("joint", loss=0), PairCut(*program.pair(loss=0))]
        ran = [cut(x) for cut in cuts]
        aten = program.cut("aten")(x).detach()
    trained = [program.cut("export"), foretrace.compile(fn, fullgraph=True)]
    trained += [foretrace.compile(fn, backend=lambda graph, inputs: graph, fullgraph=True)]
    together = [(loss, found["x"]) for loss, found in ran]
    return [*together, *(by_autograd(each, x) for each in trained), (aten, together[0][1])]


@pytest.mark.parametrize("fn", [multiplied, attention])
@pytest.mark.parametrize("view", [False, True])
def test_a_leaf_that_is_used_more_than_once(fn: Callable[[Tensor], Tensor], view: bool) -> None:
    """Casts of a leaf are made once, and of a leaf that is a view at each use."""
    torch.manual_seed(0)
    whole = torch.randn(3, 2, 16)
    x = (whole[..., ::2] if view else whole).requires_grad_()
    expected = by_autograd(fn, x)
    for place, found in enumerate(routes(fn, x)):
        assert all(map(torch.equal, expected, found)), place


def test_a_leaf_from_outside_that_is_both_operands_of_one_call() -> None:
    """It is cast once: its gradients meet in low precision, whoever cast it."""
    torch.manual_seed(0)
    w = torch.randn(4, 4, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return torch.matmul(w, w) * x

    x, tangent = torch.ones((), dtype=torch.bfloat16), torch.randn(4, 4).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        eager = fn(x)
        out, gradients = foretrace.capture(fn, (x,)).cut("joint")(x, tangents=[tangent])
    assert torch.equal(out, eager.detach())
    assert torch.equal(*gradients.values(), *torch.autograd.grad(eager, w, tangent))


CASTS: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda w: w.to(torch.bfloat16),
    "bfloat16": lambda w: w.bfloat16(),
    "type": lambda w: w.type(torch.bfloat16),
    "to of the class": lambda w: torch.Tensor.to(w, torch.bfloat16),
    "type of the class": lambda w: torch.Tensor.type(w, torch.bfloat16),
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("cast", CASTS.values(), ids=CASTS)
def test_a_cast_of_the_program_is_none_of_autocast(
    cast: Callable[[Tensor], Tensor], given: bool, grad: bool
) -> None:
    """It is made anew each time, as the grad mode has it; autocast's is made once, and followed."""
    outside = torch.randn(3, requires_grad=True)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        w = x if given else outside
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cast(w), cast(w)

    x = torch.randn(3, requires_grad=True)
    with torch.set_grad_enabled(grad):
        one, other = foretrace.compile(fn, fullgraph=True)(x)
        program = foretrace.capture(fn, (x,))
    assert one is not other
    assert one.requires_grad == other.requires_grad == grad
    assert [op.outs[0].type.requires_grad for op in program.recorded.ops] == [grad, grad]
    assert torch.equal(one, fn(x)[0])


@pytest.mark.parametrize("route", ["eager", "graphs", "step"])
def test_a_backward_under_autocast_too(route: str) -> None:
    """What the forward has cast is not cast again; nor is what autocast does not know."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.Flatten(2),
        torch.nn.Linear(9, 5),
    )
    x = torch.randn(2, 3, 5, 5)

    def step(call: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(call(x).flatten(0, 1), torch.arange(8) % 5)
            loss.backward()
        return loss

    def gradients(run: Callable[[], Tensor]) -> list[Tensor]:
        layers.zero_grad()
        return [run().detach(), *(p.grad for p in layers.parameters() if p.grad is not None)]

    backend: Any = (lambda graph, inputs: graph) if route == "graphs" else "eager"
    compiled = foretrace.compile(layers, backend=backend, fullgraph=True)
    whole = foretrace.compile(lambda: step(layers), fullgraph=True)
    expected = gradients(lambda: step(layers))
    found = gradients(whole if route == "step" else lambda: step(compiled))
    assert len(found) == 7
    assert all(map(torch.equal, expected, found))

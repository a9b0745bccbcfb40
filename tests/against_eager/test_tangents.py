"""Tangents of outputs that data sizes: of sizes that nobody can tell apart; held to shapes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.bits import same_bits
from tests.support.turns import crossed

ROWS = 6


def together(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[x > 0], y[y > 0]]).sin()


def outer(x: Tensor, y: Tensor) -> Tensor:
    return torch.outer(x[x > 0], y[y > 0]).view(-1).exp() * y.sum()


def spread(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x[x > 0], y[y > 0]]).view(-1, 1).expand(-1, 3) * x.sum() * y.sum()


def halved(x: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.avg_pool1d(x[x > 0][None], 2).sin() * y.sum()


def turned(x: Tensor, y: Tensor) -> Tensor:
    return torch.outer(x[x > 0], y[y > 0]).t().exp()


def last(x: Tensor, y: Tensor) -> Tensor:
    n = (x.detach()[:, 0] > 0).sum().item()
    return x.tensor_split((n, n + 1), 0)[2].exp() * y.sum()


def narrowed(x: Tensor, y: Tensor) -> Tensor:
    return x.narrow(0, (y.detach()[:, 0] > 0).sum() // 2, 2).exp() * y.sum()


PROGRAMS = (together, outer, spread, halved, turned, last, narrowed)


def inputs(seed: int) -> list[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, 6, generator=drawn).requires_grad_() for _ in range(2)]


HALVES = [pytest.param(False, id="joint"), pytest.param(True, id="pair")]


@pytest.mark.parametrize(("program", "halves"), crossed(PROGRAMS, HALVES))
def test_gradients_are_eagers(program: Callable[..., Tensor], halves: bool) -> None:
    captured = foretrace.capture(program, tuple(inputs(0)))
    cut = captured.cut("joint")
    pair = captured.cut("forward"), captured.cut("backward")
    for seed in range(4):
        given = inputs(seed)
        wanted = program(*given)
        tangents = (
            torch.randn_like(wanted),
            torch.randn(*reversed(wanted.shape)).permute(*reversed(range(wanted.dim()))),
        )
        for tangent in tangents:
            if halves:
                found, gradients = run_pair(*pair, tuple(given), {}, [tangent])
            else:
                found, gradients = cut(*given, tangents=[tangent])
            eager = torch.autograd.grad(wanted, given, tangent, retain_graph=True)
            assert same_bits(found, wanted)
            assert all(map(same_bits, gradients.values(), eager))


@pytest.mark.parametrize("program", [together, outer, last])
def test_one_of_another_shape_is_refused(program: Callable[..., Tensor]) -> None:
    """Autograd refuses it; a graph would spread one row over all."""
    given = inputs(0)
    cut = foretrace.capture(program, tuple(given)).cut("joint")
    tangent = torch.ones_like(program(*given))[:1]
    with pytest.raises(foretrace.Refusal, match="the tangent of output is") as refused:
        cut(*given, tangents=[tangent])
    assert refused.value.kind == "wrong tangents"

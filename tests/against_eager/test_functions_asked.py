"""A gradient that is asked inside of what a Function returns: its backward has no part in that."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import foretrace


class Counted(torch.autograd.Function):
    """Two results; `runs` has one item for each run of its backward."""

    runs: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, y * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        Counted.runs.append(1)
        return g * y, g * x + h * 2


def of_a_result(x: Tensor, w: Tensor) -> Tensor:
    one, _ = Counted.apply(x, w)
    (asked,) = torch.autograd.grad((one * one).sum(), one)
    return one * w + asked


def of_one_of_two(x: Tensor, w: Tensor) -> Tensor:
    one, two = Counted.apply(x, w)
    (asked,) = torch.autograd.grad((one * two).sum(), one)
    return two * w + asked


def of_what_follows(x: Tensor, w: Tensor) -> Tensor:
    one, _ = Counted.apply(x.exp(), w)
    row = one[:2]
    (asked,) = torch.autograd.grad((row * row).sum(), row)
    return one * w + asked.sum()


def of_what_is_behind(x: Tensor, w: Tensor) -> Tensor:
    one, _ = Counted.apply(x, w)
    (asked,) = torch.autograd.grad((one * one).sum(), x, retain_graph=True)
    return one * w + asked


PROGRAMS = of_a_result, of_one_of_two, of_what_follows, of_what_is_behind


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[[Tensor, Tensor], Tensor]) -> None:
    seen = []
    for call in (program, foretrace.compile(program, fullgraph=True)):
        x, w = (torch.linspace(1, 2, 3).requires_grad_() for _ in range(2))
        for _ in range(2):
            Counted.runs.clear()
            result = call(x, w)
            result.sum().backward()
            seen.append([result.tolist(), str(x.grad), str(w.grad), len(Counted.runs)])
    assert seen[:2] == seen[2:]

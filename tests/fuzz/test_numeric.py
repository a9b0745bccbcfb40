"""Gradients asked inside fuzzed programs, against differences of values in float64."""

import re

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from tests.fuzz import numeric

# eager warns of what it takes reluctantly
pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = (2, 3, 6, 9, 15, 19)
BLOCK, LAST = 62, 620
"""Of a block's seeds a third are fit; of all, more than 200"""

PROGRAM = """
import torch

def make():
    def program(x, y):
        return (x.sin() * y.exp()).sum() + (x @ y.t()).square().mean()
    return program

def inputs(call):
    return tuple(torch.randn(2, 3).requires_grad_() for _ in range(2)), {}

LOSS, DYNAMIC = 0, False
"""


def wrong(found: list[numeric.Found]) -> list[str]:
    return [f"seed {each.seed}: {each.why}" for each in found if each.status == "WRONG"]


def test_some_programs() -> None:
    found = list(numeric.run(QUICK))
    assert not wrong(found)
    assert [each.status for each in found] == ["checked"] * len(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, LAST, BLOCK))
def test_more_programs(first: int) -> None:
    found = list(numeric.run(range(first, first + BLOCK)))
    assert not wrong(found)
    assert sum(each.status == "checked" for each in found) >= BLOCK // 4


@pytest.mark.parametrize("order", [1, 2])
def test_a_wrong_gradient_is_found(order: int) -> None:
    """One that is half as large again, of the value or of the gradient."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        inside = numeric.Inside(PROGRAM)
        right = tuple(map(inside.pure, inside.programs()))
        numeric.numerically(right, inside.ordered)

        def off(*weights: object) -> tuple[torch.Tensor, ...]:
            value, *gradients = right[order - 1](*weights)
            return value, *(each * 1.5 for each in gradients)

        runs = (off, right[1]) if order == 1 else (right[0], off)
        with pytest.raises(GradcheckError, match=re.escape("Jacobian mismatch")):
            numeric.numerically(runs, inside.ordered)
    finally:
        torch.set_default_dtype(before)


def test_ours_is_checked() -> None:
    assert numeric.checked(0, PROGRAM).status == "checked"

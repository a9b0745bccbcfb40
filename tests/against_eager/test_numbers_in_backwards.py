"""Numbers that a Function's backward computes of data, where some outputs get no gradient.

The backward is derived again then, and each derivation has symbols of its own for its numbers.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits

Formula = Callable[[Tensor, Any, Tensor], Tensor]
FORMULAS: dict[str, Formula] = {
    "a step before the gradient": lambda x, n, g: (n / 2 * x).cos() * g,
    "a step at the gradient": lambda x, n, g: x.cos() * (g * (n / 2)),
    "steps of steps": lambda x, n, g: (x * n + n * n).sin() * (g * (n * n - 1)),
    "the number itself": lambda x, n, g: (x * n).cos() * g,
}


def scaled_by(formula: Formula) -> Any:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, number: Any) -> Tensor:
            ctx.save_for_backward(x)
            ctx.number = number
            return (x > 0).float()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
            return formula(*ctx.saved_tensors, ctx.number, g), None

    return Scaled


@pytest.mark.parametrize("used", [(0,), (1,), (0, 2), (3,), (0, 3), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_some_outputs_get_a_gradient(name: str, used: tuple[int, ...]) -> None:
    function = scaled_by(FORMULAS[name])

    def program(x: Tensor, w: Tensor, number: Tensor) -> tuple[Tensor, ...]:
        hidden = (x @ w).sin()
        spikes = function.apply(hidden, number.item())
        again = function.apply(hidden * spikes - 0.5, number.item() * 2)
        return spikes, hidden, again, function.apply(hidden + again, number.item())

    backend = foretrace.aot_autograd(fw_compiler=lambda graph, inputs: graph)
    compiled = foretrace.compile(program, fullgraph=True, backend=backend)
    for seed in range(3):
        torch.manual_seed(seed)
        x, number = torch.randn(4, 5), torch.rand(()) * 3
        w = torch.randn(5, 2)
        found = [gradient(fn, x, w, number, used) for fn in (program, compiled)]
        assert same_bits(*found)


def gradient(
    fn: Callable[..., Any], x: Tensor, w: Tensor, number: Tensor, used: tuple[int, ...]
) -> Tensor:
    leaf = w.clone().requires_grad_()
    outputs = fn(x, leaf, number)
    torch.stack([outputs[i].sum() for i in used]).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("cut", ["joint", "forward"])
def test_a_backward_that_needs_the_number_as_it_is_is_refused(cut: str) -> None:
    """It is derived after the run, whose values are gone by then."""
    function = scaled_by(lambda x, n, g: x * math.exp(n) * g)
    x, number = torch.randn(3, requires_grad=True), torch.tensor(2.0)
    program = foretrace.capture(lambda x, n: function.apply(x.sin(), n.item()), (x, number))
    with pytest.raises(foretrace.Refusal, match="depends on the inputs") as refused:
        program.cut(cut)
    assert refused.value.kind == "data-dependent"

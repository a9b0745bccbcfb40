"""A hook that is registered on a parameter after a step was captured: seen by a guard."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits

X = torch.ones(5, 4)


def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def clears(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.zero_()


HOOKS: dict[str, Callable[[Tensor], Any]] = {
    "on the gradient": lambda w: w.register_hook(lambda gradient: gradient * 0),
    "after it": lambda w: w.register_post_accumulate_grad_hook(clears),
}


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_a_cut_refuses(register: Callable[[Tensor], Any]) -> None:
    model = nn.Linear(4, 3)
    cut = foretrace.capture(step_of(model), (X,)).cut("step")
    cut(X)
    handle = register(model.weight)
    with pytest.raises(foretrace.Refusal, match=r"parameter model\.weight has other hooks"):
        cut(X)
    handle.remove()
    cut(X)


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_compiled_as_eager(register: Callable[[Tensor], Any]) -> None:
    models = []
    for compile in (lambda fn: fn, lambda fn: foretrace.compile(fn, fullgraph=True)):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        step = compile(step_of(model))
        step(X)
        handle = register(model.weight)
        step(X)
        handle.remove()
        step(X)
        models.append(model)
    one, other = models
    assert same_bits(one.weight, other.weight)
    assert same_bits(one.bias, other.bias)

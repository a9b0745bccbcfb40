"""A hook that is registered on a parameter after a step was captured: seen by a guard."""

from collections.abc import Callable
from functools import partial
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


def after_a_backward(w: Tensor, x: Tensor) -> Tensor:
    (w * x).sum().backward()
    w.register_hook(lambda gradient: gradient * 3)
    return x * 2


def before_a_backward(w: Tensor, x: Tensor) -> Tensor:
    w.register_hook(lambda gradient: gradient * 3)
    (w * x).sum().backward()
    return x * 2


def alone(w: Tensor, x: Tensor) -> Tensor:
    w.register_hook(lambda gradient: gradient * 3)
    return x * 2


def on_a_new_leaf(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    leaf = torch.ones(4, requires_grad=True)
    leaf.register_hook(lambda gradient: gradient * 3)
    return leaf, x * 2


def on_a_new_leaf_of_a_step(w: Tensor, x: Tensor) -> Tensor:
    (w * x).sum().backward()
    return on_a_new_leaf(w, x)[0]


GRADIENTS_INSIDE = after_a_backward, before_a_backward, on_a_new_leaf_of_a_step
REGISTER = alone, on_a_new_leaf
CALLS = [(each, True) for each in (*GRADIENTS_INSIDE, *REGISTER)] + [(p, False) for p in REGISTER]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(("program", "grad_mode"), CALLS)
def test_a_hook_that_no_backward_of_the_call_meets_is_registered(
    program: Callable[..., Any], grad_mode: bool, backend: str
) -> None:
    seen = []
    captured = partial(foretrace.compile, backend=backend, fullgraph=True)
    for compile in (lambda fn: fn, captured):
        w, call = torch.ones(4, requires_grad=True), compile(program)
        for _ in range(2):
            with torch.set_grad_enabled(grad_mode):
                given = call(w, X)
            results = [given] if isinstance(given, Tensor) else [*given]
            leaves = [w, *(result for result in results if result.requires_grad)]
            for leaf in leaves:
                leaf.sum().backward()
            seen.append([str(leaf.grad) for leaf in leaves])
    assert seen[:2] == seen[2:]

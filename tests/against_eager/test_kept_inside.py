"""What a backward inside of a program adds to the `.grad` of tensors that are no leaves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits


def kept_then_written(x: Tensor) -> Any:
    kept = x * 1
    kept.retain_grad()
    kept.mul_(2)
    kept.sum().backward()
    return kept.grad


def read_in_between(x: Tensor) -> Any:
    kept = x * 1
    kept.retain_grad()
    other = kept * 3
    kept.mul_(2)
    (kept.sum() + other.sum()).backward()
    return kept.grad


def a_view_whose_base_is_written(x: Tensor) -> Any:
    base = x * 1
    kept = base[:1]
    kept.retain_grad()
    base.mul_(2)
    kept.sum().backward()
    return kept.grad


def named_among_inputs(x: Tensor) -> Any:
    kept = x * 1
    (kept**2).sum().backward(inputs=[kept])
    return kept.grad


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize(
    "program",
    [kept_then_written, read_in_between, a_view_whose_base_is_written, named_among_inputs],
)
def test_it_is_as_in_eager_or_refused(program: Callable[[Tensor], Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    expected, call = program(x), foretrace.compile(program)
    for _ in range(2):
        assert same_bits(call(x), expected)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(program, (x,))
    assert caught.value.kind == "autograd inside"


def test_written_before_it_is_kept() -> None:
    """The way out."""

    def program(x: Tensor) -> Any:
        kept = x * 1
        kept.mul_(2)
        kept.retain_grad()
        (kept * 3).sum().backward()
        return kept.grad

    x = torch.ones(2, requires_grad=True)
    found = foretrace.compile(program, fullgraph=True)(x)
    assert same_bits(found, torch.full((2,), 3.0))


def twice_under_unpack_hooks(x: Tensor) -> Any:
    weight = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 2 * t, lambda t: t):
        total = (weight**3).sum()
    (first,) = torch.autograd.grad(total, weight, create_graph=True)
    first.sum().backward()
    assert weight.grad is not None
    return weight.grad * x


def an_argument_twice_under_unpack_hooks(x: Tensor) -> Any:
    x.grad = None
    with torch.autograd.graph.save_on_cpu():
        total = (x**3).sum()
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    (total + first.square().sum()).backward()
    assert x.grad is not None
    return x.grad.clone()


@pytest.mark.parametrize(
    "program", [twice_under_unpack_hooks, an_argument_twice_under_unpack_hooks]
)
def test_what_an_unpack_hook_returns_for_a_leaf(program: Callable[[Tensor], Any]) -> None:
    x = torch.ones(2, requires_grad=True)
    expected, call = program(x), foretrace.compile(program, fullgraph=True)
    for _ in range(2):
        assert same_bits(call(x), expected)


def of_what_keeps_its_gradient(x: Tensor, w: Tensor) -> Any:
    hidden = (x * w).sin()
    hidden.retain_grad()
    after = hidden * 2
    after.retain_grad()
    loss = (after * w).sum() + hidden.cos().sum()
    loss.backward(inputs=[after, w], retain_graph=True)
    first = after.grad, w.grad
    loss.backward(inputs=[hidden])
    return *first, hidden.grad, after.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_inputs_of_a_backward_may_be_tensors_that_keep_their_gradients(backend: str) -> None:
    compiled = foretrace.compile(of_what_keeps_its_gradient, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.linspace(-1, 1, 6).view(2, 3)
        own, others = (torch.linspace(1, 2, 3).requires_grad_() for _ in range(2))
        found, expected = compiled(x, own), of_what_keeps_its_gradient(x, others)
        assert all(map(same_bits, found, expected))
        assert same_bits(own.grad, others.grad)

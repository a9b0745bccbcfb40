"""Inputs of which a program sets `requires_grad`, more than once: what was computed in between."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.refusing import check, refused

BACKENDS: dict[str, Any] = {
    "graphs": lambda module, inputs: module,
    "compilers": foretrace.aot_autograd(fw_compiler=lambda module, inputs: module),
}


def _between(x: Tensor) -> Any:
    x.requires_grad_(True)
    once = x * 2
    x.requires_grad_(False)
    between = x * 3
    x.requires_grad_(True)
    return once + between + x * 5, between


def _off_at_the_end(x: Tensor) -> Any:
    x.requires_grad = True
    once = x * 2
    x.requires_grad = False
    return once + x * 3, x


def _again_and_again(x: Tensor) -> Any:
    total = x * 1
    for place in range(5):
        x.requires_grad_(place % 2 == 0)
        total = total + x * place
    return total, x


def _with_backwards(x: Tensor) -> Any:
    x.requires_grad_(True)
    (x * x).sum().backward()
    x.requires_grad_(False)
    between = x * 3
    x.requires_grad_(True)
    (x * between).sum().backward()
    left: Any = x.grad
    return x * 2, left.clone()


def _written_between(x: Tensor) -> Any:
    x.requires_grad_(True)
    x.requires_grad_(False)
    x.add_(1)
    between = x * 3
    x.requires_grad_(True)
    return between, x


def _viewed_while_on(x: Tensor) -> Any:
    x.requires_grad_(True)
    view = x[0]
    x.requires_grad_(False)
    asked = view.requires_grad
    x.requires_grad_(True)
    return view * 2, asked


PROGRAMS = (_between, _off_at_the_end, _again_and_again, _with_backwards, _written_between,
            _viewed_while_on)  # fmt: skip


def _called(fn: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What two calls give, and leave, and where gradients arrive."""
    seen: list[Any] = []
    for _ in range(2):
        first, other = fn(x)
        if first.requires_grad:
            first.sum().backward()
        flags = [(each.requires_grad, each.is_leaf) for each in (first, x)]
        kept = (other.tolist(), other.requires_grad) if isinstance(other, Tensor) else other
        seen.append((first.tolist(), kept, other is x, flags, x.tolist()))
        seen.append(None if x.grad is None else x.grad.tolist())
    return seen


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_computed_in_between_has_the_history_of_then(program: Any, on: bool) -> None:
    expected = _called(program, torch.arange(6.0).view(2, 3).requires_grad_(on))
    for fullgraph in (False, True):
        compiled = foretrace.compile(program, fullgraph=fullgraph)
        assert _called(compiled, torch.arange(6.0).view(2, 3).requires_grad_(on)) == expected


def _viewed_before(x: Tensor) -> Any:
    view = x[0]
    x.requires_grad_()  # here
    return x * 2, view


def _view_of_detached(x: Tensor) -> Any:
    view = x.detach()[0]
    x.requires_grad_()
    return x * 2, view


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_a_view_without_a_history_is_taken_for_a_leaf_by_eager() -> None:
    """It requires grad once the input does."""
    check(refused(_viewed_before, (torch.ones(2, 3),)), at=_viewed_before)
    for program in (_viewed_before, _view_of_detached):
        compiled: Any = foretrace.compile(program)
        assert _called(compiled, torch.ones(2, 3)) == _called(program, torch.ones(2, 3))


def test_one_that_is_detached_and_followed_again() -> None:
    """A leaf in eager: the caller's tensor would keep its history."""

    def program(x: Tensor) -> Tensor:
        x.detach_()
        x.requires_grad_()
        return x * 2

    def given() -> Tensor:
        return torch.ones(2, requires_grad=True) * 1

    x = given()
    assert program(x).requires_grad
    assert x.is_leaf
    refusal = refused(program, (given(),))
    assert "detaches the input x in place" in refusal.what


def _before_its_use(x: Tensor) -> Any:
    x.requires_grad_()
    return (x * x).sin(), None


def _with_a_hook(x: Tensor) -> Any:
    x.requires_grad_()
    x.register_hook(lambda gradient: gradient * 2)
    return x.exp() * 3, x.shape


class Losses(torch.nn.Module):
    """A buffer to which losses are added, as in vector quantization."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Any:
        loss: Tensor = self.zero
        loss.requires_grad_()
        return loss * 2 + x.square().mean(), None


@pytest.mark.parametrize("backend", ["graphs", "compilers"])
@pytest.mark.parametrize("program", [_before_its_use, _with_a_hook])
def test_a_graph_is_called_with_one_that_is_followed_before_its_use(
    program: Any, backend: str
) -> None:
    compiled = foretrace.compile(program, backend=BACKENDS[backend], fullgraph=True)
    expected = _called(program, torch.arange(6.0).view(2, 3))
    assert _called(compiled, torch.arange(6.0).view(2, 3)) == expected


@pytest.mark.parametrize("backend", ["graphs", "compilers"])
def test_a_gradient_arrives_at_a_buffer(backend: str) -> None:
    eager, module = Losses(), Losses()
    compiled = foretrace.compile(module, backend=BACKENDS[backend], fullgraph=True)
    for _ in range(2):
        for call in (eager, compiled):
            call(torch.ones(3, requires_grad=True))[0].backward()
        assert torch.equal(module.zero.grad, eager.zero.grad)
        assert module.zero.is_leaf


def test_a_graph_is_not_called_with_one_that_is_used_before() -> None:
    def program(x: Tensor) -> Tensor:
        before = x * 2
        x.requires_grad_()
        return x * before

    with pytest.raises(foretrace.Refusal, match="of which it sets `requires_grad`"):
        foretrace.compile(program, backend=BACKENDS["graphs"], fullgraph=True)(torch.ones(3))


@pytest.mark.parametrize("backend", ["graphs", "compilers"])
def test_a_call_that_raises_before_it_leaves_the_input_as_it_was(backend: str) -> None:
    def program(matrix: Tensor, x: Tensor) -> Tensor:
        found = torch.linalg.cholesky(matrix)
        x.requires_grad_()
        return (found * x).sum()

    compiled = foretrace.compile(program, backend=BACKENDS[backend], fullgraph=True)
    for sign in (1, -1, 1):
        inputs = [torch.ones(2), torch.ones(2)]
        for call, x in zip((program, compiled), inputs, strict=True):
            try:
                call(torch.eye(2) * sign, x).backward()
            except torch.linalg.LinAlgError:
                assert sign == -1
        assert [x.requires_grad for x in inputs] == [sign == 1] * 2
        if sign == 1:
            assert torch.equal(*(x.grad for x in inputs))

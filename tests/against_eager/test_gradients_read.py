"""`.grad` beside an eager backward: read at each call, whatever it is then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace


def parameters() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]


def give_gradients(params: list[nn.Parameter], step: int) -> None:
    """As an eager backward does: another tensor each time, or the same with more in it."""
    torch.manual_seed(step)
    for parameter in params:
        fresh = torch.randn_like(parameter)
        if parameter.grad is not None and step % 2:
            parameter.grad.add_(fresh)
        else:
            parameter.grad = fresh


def descends(params: list[nn.Parameter]) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            for parameter in params:
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)

    return step


def clips(params: list[nn.Parameter]) -> Callable[[], Tensor]:
    return lambda: nn.utils.clip_grad_norm_(params, 0.5)


def clears(params: list[nn.Parameter]) -> Callable[[], None]:
    def step() -> None:
        descends(params)()
        for parameter in params:
            parameter.grad = None
            assert parameter.grad is None

    return step


def zeroes(params: list[nn.Parameter]) -> Callable[[], None]:
    def step() -> None:
        descends(params)()
        for parameter in params:
            if parameter.grad is not None:
                parameter.grad.zero_()

    return step


def optimizes(params: list[nn.Parameter]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    give_gradients(params, 99)
    optimizer.step()  # makes its state

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return step


PROGRAMS = [descends, clips, clears, zeroes, optimizes]


def state(params: list[nn.Parameter]) -> list[Any]:
    tensors = [each for parameter in params for each in (parameter, parameter.grad)]
    return [None if each is None else each.detach().clone() for each in tensors]


@pytest.mark.parametrize("entry", ["compile", "export", "aten"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_beside_an_eager_backward(make: Callable[..., Any], entry: str) -> None:
    mine, ours = parameters(), parameters()
    eager, program = make(mine), make(ours)
    give_gradients(mine, 0)
    give_gradients(ours, 0)
    if entry == "compile":
        call = foretrace.compile(program, fullgraph=True)
    else:
        call = foretrace.capture(program).cut(entry)
    for step in range(1, 5):
        eager()
        call()
        assert all(map(_same, state(mine), state(ours)))
        give_gradients(mine, step)
        give_gradients(ours, step)
    if entry == "compile":
        assert not call.recaptures


def _same(one: Any, other: Any) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def scaled(x: Tensor) -> Tensor:
    return x * 2 if x.grad is None else x * x.grad


@pytest.mark.parametrize("entry", ["compile", "export", "aten", "joint"])
def test_of_an_argument(entry: str) -> None:
    """Whether there is one is a guard; what is in it is not."""
    x = torch.randn(3, requires_grad=True)
    tangent = torch.ones(3)

    def caller() -> Callable[[Tensor], Tensor]:
        if entry == "compile":
            return foretrace.compile(scaled, fullgraph=True)
        cut = foretrace.capture(scaled, (x,)).cut(entry)
        return (lambda x: cut(x, tangents=[tangent])[0]) if entry == "joint" else cut

    call = caller()
    assert torch.equal(call(x), scaled(x))
    x.grad = torch.randn(3)
    if entry != "compile":
        with pytest.raises(foretrace.Refusal, match=r"x\.grad is there now"):
            call(x)
        call = caller()
    for _ in range(3):
        assert torch.equal(call(x), scaled(x))
        x.grad = torch.randn(3)
    x.grad = None
    if entry == "compile":
        assert torch.equal(call(x), scaled(x))
        assert len(call.recaptures) == 1  # type: ignore[attr-defined]
    else:
        with pytest.raises(foretrace.Refusal, match=r"x\.grad is None now"):
            call(x)


def test_of_a_module() -> None:
    """Its parameters are inputs by name, and so are their gradients."""
    linear = nn.Linear(3, 2)

    def norm(x: Tensor) -> Tensor:
        grad = linear.weight.grad
        return linear(x) if grad is None else linear(x) + grad.norm()

    x = torch.randn(4, 3)
    linear(x).sum().backward()
    program = foretrace.capture(norm, (x,))
    assert "linear.weight.grad" in {role.name for role in program.cut("aten").signature.inputs}
    for _ in range(2):
        assert torch.equal(program.cut("aten")(x), norm(x))
        linear(x).sum().backward()


def test_open_sizes() -> None:
    compiled = foretrace.compile(scaled, dynamic=True, fullgraph=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, requires_grad=True)
        x.grad = torch.randn(rows)
        assert torch.equal(compiled(x), scaled(x))
    assert not compiled.recaptures


def test_two_that_share_one() -> None:
    """A gradient that is an argument too is that argument."""
    g = torch.randn(3)
    x = torch.randn(3, requires_grad=True)
    x.grad = g
    cut = foretrace.capture(lambda x, g: x.grad * g, (x, g)).cut("export")
    assert torch.equal(cut(x, g), g * g)
    x.grad = torch.randn(3)
    with pytest.raises(foretrace.Refusal, match=r"x\.grad is another tensor"):
        cut(x, g)


def test_binding_one_is_repeated() -> None:
    def binds(x: Tensor) -> Tensor:
        x.grad = torch.ones(3)
        return x * 2

    parameter = nn.Parameter(torch.randn(3))

    def binds_outside(x: Tensor) -> Tensor:
        parameter.grad = x.detach()
        return x * 2

    for program in (binds, binds_outside):
        x, other = (torch.randn(3, requires_grad=True) for _ in range(2))
        captured = foretrace.capture(program, (x,))
        assert x.grad is None
        assert parameter.grad is None
        captured.cut("export")(other)
        bound = other if program is binds else parameter
        assert bound.grad is not None
        assert torch.equal(bound.grad, torch.ones(3) if program is binds else other)
        parameter.grad = None
    assert "grad" not in vars(torch.Tensor)

"""Open numbers and the program's own state in autograd.Functions that a graph calls whole."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

state = SimpleNamespace(calls=0, kept=torch.ones(3), way="one")
log: list[float] = []


class Scaled(torch.autograd.Function):
    """By a number that may be in something."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Any) -> Tensor:
        while not isinstance(by, (int, float, torch.SymInt)):
            by = by() if callable(by) else by["by"] if isinstance(by, dict) else by[0]
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.by, None


class Reading(torch.autograd.Function):
    """What the program has set before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.calls, ctx.kept = state.calls, state.kept
        return x * ctx.calls * ctx.kept

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.calls * ctx.kept


class Filling(torch.autograd.Function):
    """Puts something into a list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        log.append(1.0)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


class Chosen(torch.autograd.Function):
    """By a name that the program has bound before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.by = 3 if state.way == "other" else 2
        return x * ctx.by

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.by


class Logged(torch.autograd.Function):
    """Keeps a number of its tensors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        log.append(x.sum().item())
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * 2


def calls() -> int:
    state.calls += 1
    return int(state.calls) if state.calls < 0 else state.calls


def kept(x: Tensor) -> Tensor:
    state.kept = x.sum(0).detach()
    return x


def closed(x: Tensor) -> Tensor:
    by = calls()
    return Scaled.apply(x, lambda: by)  # type: ignore[no-any-return]


def left(x: Tensor) -> Tensor:
    state.way = "other"
    y: Tensor = Chosen.apply(x)
    return y


def filled(x: Tensor) -> Tensor:
    log.append(2.0)
    y: Tensor = Filling.apply(x)
    log.append(3.0)
    return y


GIVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a count": lambda x: Scaled.apply(x, calls()),
    "what follows from it": lambda x: Scaled.apply(x, calls() * 2 + 0.5),
    "a float of data": lambda x: Scaled.apply(x, x.sum().item()),
    "an integer of data": lambda x: Scaled.apply(x, int(x.sum().item())),
    "in a tuple": lambda x: Scaled.apply(x, (calls(),)),
    "in a dict": lambda x: Scaled.apply(x, {"by": calls()}),
}
HELD: dict[str, Callable[[Tensor], Tensor]] = {
    "in a closure": closed,
    "set before": lambda x: x * calls() + Reading.apply(x),
    "a tensor set before": lambda x: Reading.apply(kept(x)),
    "filled": filled,
    "left": left,
    "made inside": lambda x: Logged.apply(x) * 1,
}


def trained(program: Callable[[Tensor], Tensor]) -> list[Any]:
    """What three calls give and leave."""
    state.calls, state.kept, state.way, found = 0, torch.ones(3), "one", list[Any]()
    log.clear()
    for number in range(3):
        x = torch.full((2, 3), number + 1.0, requires_grad=True)
        y = program(x)
        y.sum().backward()
        assert x.grad is not None
        found.append((y.tolist(), x.grad.tolist(), state.calls, state.kept.tolist(), [*log]))
    return found


@pytest.mark.parametrize("name", GIVEN)
def test_a_function_is_given_the_numbers_of_each_call(name: str) -> None:
    compiled = foretrace.compile(GIVEN[name], fullgraph=True)
    assert trained(compiled) == trained(GIVEN[name])
    assert not compiled.recaptures


@pytest.mark.parametrize("name", GIVEN)
def test_so_does_the_function_of_a_cut(name: str) -> None:
    state.calls = 0
    cut = foretrace.capture(GIVEN[name], (torch.ones(2, 3, requires_grad=True),)).cut("export")
    assert trained(cut) == trained(GIVEN[name])


def test_a_function_is_given_an_open_size() -> None:
    def program(x: Tensor) -> Tensor:
        return Scaled.apply(x, x.shape[0])  # type: ignore[no-any-return]

    example = (torch.ones(4, 3, requires_grad=True),)
    cut = foretrace.capture(program, example, dynamic_shapes=True).cut("export")
    assert trained(cut) == trained(program)


@pytest.mark.parametrize("name", HELD)
def test_a_function_that_no_graph_can_call_is_refused(name: str) -> None:
    """By its line; without `fullgraph` it runs as Python, and a joint cut has its backward."""
    state.calls, state.way, before = 0, "one", state.kept
    example = (torch.ones(2, 3, requires_grad=True),)
    program = foretrace.capture(HELD[name], example)
    with pytest.raises(foretrace.Refusal) as caught:
        program.cut("export")
    assert caught.value.kind == "autograd.Function"
    assert caught.value.at is not None
    assert state.calls == 0
    assert state.kept is before
    outputs, gradients = program.cut("joint")(*example, tangents=[torch.ones(2, 3)])
    state.calls, log[:] = 0, []
    expected = HELD[name](*example)
    assert torch.equal(outputs, expected)
    assert torch.equal(
        next(iter(gradients.values())), torch.autograd.grad(expected.sum(), example[0])[0]
    )


@pytest.mark.parametrize("name", HELD)
@pytest.mark.filterwarnings("ignore:.*not captured whole")
def test_such_a_function_runs_as_python(name: str) -> None:
    assert trained(foretrace.compile(HELD[name])) == trained(HELD[name])

"""Tensors that others bind anew between calls: read in their places, once that was seen."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

CALLS = 7


@dataclass
class Given:
    """A program, what somebody binds before its call of a number, and its other arguments."""

    program: Callable[..., Tensor]
    bind: Callable[[int], Any]
    more: Callable[[], tuple[Any, ...]] = field(default=tuple)


def new(*, grad: bool = False) -> Tensor:
    return torch.randn(3, requires_grad=grad)


def an_attribute() -> Given:
    at = SimpleNamespace(t=new())
    return Given(lambda x: x * at.t, lambda _: setattr(at, "t", new()))


def of_a_module() -> Given:
    model: Any = nn.Linear(3, 3)
    model.hidden = new()
    return Given(lambda x: model(x) + model.hidden, lambda _: setattr(model, "hidden", new()))


def an_entry() -> Given:
    at = {"t": new(), "k": 2.0}
    return Given(lambda x: x * at["t"] * at["k"], lambda _: at.update(t=new()))


def a_cell() -> Given:
    cell = new()

    def bind(_: int) -> None:
        nonlocal cell
        cell = new()

    return Given(lambda x: x * cell, bind)


def in_a_tuple() -> Given:
    at = SimpleNamespace(pair=(new(), new()))
    return Given(
        lambda x: x * at.pair[0] + at.pair[1], lambda _: setattr(at, "pair", (new(), new()))
    )


def an_item() -> Given:
    at = [new(), new()]
    return Given(lambda x: x * at[0] + at[1], lambda i: at.__setitem__(i % 2, new()))


def of_a_deque() -> Given:
    at = deque([new(), new()], maxlen=2)
    return Given(lambda x: x * at[0] + at[1], lambda _: at.append(new()))


def nested() -> Given:
    at = [new(), 2.0, {"t": new()}]
    return Given(lambda x: x * at[0] * at[1] + at[2]["t"], lambda _: at[2].update(t=new()))  # type: ignore[index,union-attr]


def with_a_history() -> Given:
    at = SimpleNamespace(t=new(grad=True) * 2)
    return Given(lambda x: (x * at.t).tanh(), lambda _: setattr(at, "t", new(grad=True) * 2))


def a_leaf_that_is_trained() -> Given:
    at = SimpleNamespace(t=new(grad=True))

    def program(x: Tensor) -> Tensor:
        (x * at.t).sum().backward()
        return at.t.grad * x

    return Given(program, lambda _: setattr(at, "t", new(grad=True)))


def a_leaf_with_a_gradient() -> Given:
    def leaf() -> Tensor:
        made = new(grad=True)
        made.grad = new()
        return made

    at = SimpleNamespace(t=leaf())

    def program(x: Tensor) -> Tensor:
        (x * at.t).sum().backward()
        return at.t.grad * x

    return Given(program, lambda _: setattr(at, "t", leaf()))


def an_argument_too() -> Given:
    at = SimpleNamespace(t=new())
    return Given(lambda x, y: x * at.t + y, lambda _: setattr(at, "t", new()), lambda: (at.t,))


def that_is_written() -> Given:
    at = SimpleNamespace(t=new())
    return Given(
        lambda x: x * 2 + at.t.mul_(2), lambda i: setattr(at, "t", torch.full((3,), 1.0 + i))
    )


EACH: list[Callable[[], Given]] = [
    an_attribute, of_a_module, an_entry, a_cell, in_a_tuple, an_item, of_a_deque, nested,
    with_a_history, a_leaf_that_is_trained, a_leaf_with_a_gradient, an_argument_too,
    that_is_written,
]  # fmt: skip


def run(given: Given, call: Callable[..., Tensor]) -> list[list[Tensor]]:
    torch.manual_seed(1)
    found = []
    for number in range(CALLS):
        given.bind(number)
        x = new(grad=True)
        result = call(x, *given.more())
        result.sum().backward()
        found.append([result.detach().clone(), x.grad])
    return found


def twice(make: Callable[[], Given]) -> tuple[Given, Given]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(make())
    return made[0], made[1]


@pytest.mark.parametrize(
    ("make", "backend"), [*((make, "eager") for make in EACH), (an_attribute, "aot_eager")]
)
def test_one_more_capture_for_all_of_them(make: Callable[[], Given], backend: str) -> None:
    eager, other = twice(make)
    compiled = foretrace.compile(other.program, backend=backend, fullgraph=True)
    for before, found in zip(run(eager, eager.program), run(other, compiled), strict=True):
        assert all(map(torch.equal, before, found))
    assert len(compiled.recaptures) == 1, [*map(str, compiled.recaptures)]


def same_as(at: Any, program: Callable[[Tensor], Tensor], compiled: Any) -> None:
    x, state = new(), dict(vars(at))
    expected = program(x)
    after = dict(vars(at))
    vars(at).update(state)
    assert torch.equal(compiled(x), expected)
    assert {name: id(vars(at)[name]) for name in state if state[name] is after[name]} == {
        name: id(item) for name, item in state.items() if item is after[name]
    }


def test_a_tensor_that_is_bound_to_one_held_elsewhere() -> None:
    """What the program asked by `is`, it was told of two."""
    at = SimpleNamespace(t=new(), u=new())

    def program(x: Tensor) -> Tensor:
        return x * at.t if at.t is not at.u else x - 1

    compiled = foretrace.compile(program, fullgraph=True)
    for number in range(8):
        at.t = at.u if number in (3, 6) else new()
        same_as(at, program, compiled)


@pytest.mark.parametrize("keep", [lambda t: t, lambda t: [t], lambda t: {"t": t}, lambda t: (t,)])
def test_what_the_program_binds_anew_is_another_than_what_is_held(keep: Any) -> None:
    """A first state is kept: the state is another one from the second call on, and it is not."""
    first = torch.zeros(3)
    at = SimpleNamespace(state=first, first=keep(first))

    def program(x: Tensor) -> Tensor:
        kept = at.first if isinstance(at.first, Tensor) else next(iter(_items(at.first)))
        before = at.state
        at.state = (before + x).tanh()
        return at.state - before + 10 * kept

    compiled = foretrace.compile(program, fullgraph=True)
    for _ in range(5):
        same_as(at, program, compiled)


def _items(held: Any) -> Any:
    return held.values() if isinstance(held, dict) else held


def test_both_of_them_are_bound_anew() -> None:
    at = SimpleNamespace(state=torch.zeros(3))
    at.first = at.state

    def program(x: Tensor) -> Tensor:
        at.state = at.state + x
        return at.state * 2 + at.first

    compiled = foretrace.compile(program, fullgraph=True)
    for number in range(6):
        if number % 2:
            at.first = at.state
        same_as(at, program, compiled)


def test_a_way_that_seldom_binds_it() -> None:
    """The other way reads what that one has left, however often."""
    at = SimpleNamespace(count=0, t=new())

    def program(x: Tensor) -> Tensor:
        at.count += 1
        if at.count % 3 == 0:
            at.t = x * 2
        return x + at.t

    other = SimpleNamespace(**vars(at))
    compiled = foretrace.compile(program, fullgraph=True)
    for _ in range(12):
        x, state = new(), dict(vars(at))
        expected = program(x)
        vars(at).update(state)
        assert torch.equal(compiled(x), expected)
    assert other.count != at.count == 12
    assert len(compiled.recaptures) == 1

"""The line of a change of Python state, by whatever idiom the program makes it."""

import random
from collections.abc import Callable
from random import random as drawn
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.random as npr
import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.refusing import check, guilty_line, refused

X = torch.randn(3, 4)
CONFIG = SimpleNamespace(last=None)
SEEN: dict[str, Any] = {}


class Base(nn.Module):
    """What the modules below have."""

    def __init__(self) -> None:
        super().__init__()
        self.list: list[Tensor] = []
        self.dict: dict[str, Tensor] = {}
        self.last: Tensor | None = None


class SetAttr(Base):
    def forward(self, x: Tensor) -> Tensor:
        setattr(self, "last", x * 2)  # noqa: B010  # here
        return x


class Helper(Base):
    """Stores in a method without an operator."""

    def remember(self, y: Tensor) -> None:
        self.last = y  # here

    def forward(self, x: Tensor) -> Tensor:
        self.remember(x * 2)
        return x


class Branches(Base):
    """Stores at one of two lines; another class stores under the same name."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.dict["y"] = y  # here
        return y


class Appends(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.list.append(y)  # here
        return x


def helps(module: Base, y: Tensor) -> None:
    module.last = y  # here


class ByFunction(Base):
    def forward(self, x: Tensor) -> Tensor:
        helps(self, x * 2)
        return x


@pytest.mark.parametrize(
    ("module", "at"),
    [
        (SetAttr(), SetAttr.forward),
        (Helper(), Helper.remember),
        (Branches(), Branches.forward),
        (nn.Sequential(nn.Linear(4, 4), Helper()), Helper.remember),
        (ByFunction(), helps),
        (Appends(), Appends.forward),
    ],
)
def test_stores_of_modules(module: nn.Module, at: Callable[..., Any]) -> None:
    (state,) = foretrace.capture(module, (X,)).recorded.states
    assert guilty_line(at) in str(state.at)


def draws_by_module(x: Tensor) -> Tensor:
    return x * random.uniform(0, 1)  # here


def draws_by_name(x: Tensor) -> Tensor:
    return x * drawn()  # here


def draws_by_numpy(x: Tensor) -> Tensor:
    return x * float(np.random.rand())  # noqa: NPY002  # here


def draws_by_alias(x: Tensor) -> Tensor:
    return x * npr.randint(3)  # noqa: NPY002  # here


def shuffled(numbers: list[int]) -> list[int]:
    random.shuffle(numbers)  # here
    return numbers


def draws_in_a_helper(x: Tensor) -> Tensor:
    return x * shuffled([1, 2, 3])[0]


def draws_locally(x: Tensor) -> Tensor:
    import random as other  # noqa: PLC0415

    return x * other.random()  # here


def in_a_closure() -> Callable[[Tensor], Tensor]:
    number = random.random

    def inner(x: Tensor) -> Tensor:
        return x * number()  # here

    return inner


IN_A_CLOSURE = in_a_closure()


@pytest.mark.parametrize(
    ("fn", "at"),
    [
        (draws_by_module, draws_by_module),
        (draws_by_name, draws_by_name),
        (draws_by_numpy, draws_by_numpy),
        (draws_by_alias, draws_by_alias),
        (draws_in_a_helper, shuffled),
        (draws_locally, draws_locally),
        (IN_A_CLOSURE, IN_A_CLOSURE),
    ],
)
def test_draws(fn: Callable[..., Any], at: Callable[..., Any]) -> None:
    refusal = refused(fn, (X,))
    check(refusal, at=at)
    assert refusal.what.startswith("the program seeds")


def sets_a_field(x: Tensor) -> Tensor:
    CONFIG.last = object()  # here
    return x * 2


def fills_a_global(x: Tensor) -> Tensor:
    SEEN["x"] = [object()]  # here
    return x * 2


@pytest.mark.parametrize("fn", [sets_a_field, fills_a_global])
def test_changes_that_a_compiled_program_makes(fn: Callable[..., Any]) -> None:
    compiled = foretrace.compile(fn, fullgraph=True)
    compiled(X)  # as Python: only the first call may do it
    with pytest.raises(foretrace.Refusal) as caught:
        compiled(X)
    check(caught.value, at=fn)

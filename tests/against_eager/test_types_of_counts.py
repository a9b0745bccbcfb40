"""The type of a number that a program counts with, asked by `type` or by what else gives it."""
# ruff: noqa: PLW0108  (a function that runs looks the name up)

import builtins
import functools
import operator
from builtins import isinstance as is_one, type as kind
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

KIND_OF: Any = type
TABLE: dict[str, Any] = {"kind of": type}
HOLDER: Any = SimpleNamespace(kind_of=type)
OF_PARTS = functools.partial(map, type)
CLASS_OF = operator.attrgetter("__class__")


def enclosed() -> Callable[[Any], Any]:
    kind_of: Any = type
    return lambda number: kind_of(number)


def imported(number: Any) -> Any:
    from builtins import type as kind_of  # noqa: PLC0415  (what is tested)

    return kind_of(number)


def imported_whole(number: Any) -> Any:
    import builtins as names  # noqa: PLC0415

    return names.type(number)


def by_default(number: Any, kind_of: Any = type) -> Any:
    return kind_of(number)


def local(number: Any) -> Any:
    kind_of = type
    return kind_of(number)


def matched(number: Any) -> Any:
    match number:
        case int():
            return int
        case float():
            return float
    return None


BY: dict[str, Callable[[Any], Any]] = {
    "mapped": lambda n: next(iter(map(type, [n]))),
    "imported name": lambda n: kind(n),
    "of builtins": lambda n: builtins.type(n),
    "a global": lambda n: KIND_OF(n),
    "a table": lambda n: TABLE["kind of"](n),
    "an attribute": lambda n: HOLDER.kind_of(n),
    "a partial": lambda n: next(iter(OF_PARTS([n]))),
    "text": lambda n: vars(builtins)["type"](n),
    "a cell": enclosed(),
    "an import": imported,
    "an import of all": imported_whole,
    "a default": by_default,
    "a local name": local,
    "its class": lambda n: n.__class__,
    "its class, by a getter": CLASS_OF,
    "its class, by text": lambda n: getattr(n, "__class__"),  # noqa: B009
    "isinstance": lambda n: next(k for k in (int, float) if isinstance(n, k)),
    "isinstance by another name": lambda n: next(k for k in (int, float) if is_one(n, k)),
    "isinstance of builtins": lambda n: next(k for k in (int, float) if builtins.isinstance(n, k)),
    "a pattern": matched,
    "of its kind": lambda n: kind(n)(0).__class__,
}


class Counting(nn.Module):
    """It counts with an int and a float, and computes otherwise where they are none."""

    def __init__(self, kind_of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.kind_of, self.calls, self.scale = kind_of, 0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.scale *= 0.5
        whole = x * self.calls if self.kind_of(self.calls) is int else -x
        return whole * (self.scale if self.kind_of(self.scale) is float else 0)


@pytest.mark.parametrize("name", BY)
def test_it_is_pythons(name: str) -> None:
    own, eager, x = Counting(BY[name]), Counting(BY[name]), torch.ones(2)
    compiled = foretrace.compile(own, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(x), eager(x))
    assert (own.calls, own.scale) == (eager.calls, eager.scale)


@pytest.mark.parametrize("name", BY)
def test_a_cut_answers_as_eager_or_not_at_all(name: str) -> None:
    own, eager, x = Counting(BY[name]), Counting(BY[name]), torch.ones(2)
    cut = foretrace.capture(own, (x,)).cut("aten")
    for _ in range(3):
        expected = eager(x)
        try:
            assert torch.equal(cut(x), expected)
        except foretrace.Refusal as refusal:
            assert refusal.kind == "guard broken"  # noqa: PT017  (it may, or may not)
            break


class Later(Counting):
    """It asks on one way alone."""

    def forward(self, x: Tensor, *, asks: bool = False) -> Tensor:
        self.calls += 1
        if asks and self.kind_of(self.calls) is not int:
            return -x
        return x * self.calls


def test_it_is_asked_on_another_way() -> None:
    own, eager, x = Later(BY["imported name"]), Later(BY["imported name"]), torch.ones(2)
    compiled = foretrace.compile(own, fullgraph=True)
    for asks in (False, False, True, True, False):
        assert torch.equal(compiled(x, asks=asks), eager(x, asks=asks))


TEXT = """
calls = 0

class Remade:
    def __init__(self, x):
        self.x = x

def program(given):
    global calls
    calls += 1
    return type(given)(given.x * calls)
"""


def test_who_only_calls_it_keeps_numbers_open() -> None:
    exec(compile(TEXT, "<cell 7>", "exec"), names := dict[str, Any]())  # noqa: S102
    compiled = foretrace.compile(names["program"], fullgraph=True)
    for count in range(1, 5):
        given = names["Remade"](torch.ones(2))
        assert torch.equal(compiled(given).x, torch.full((2,), float(count)))
    assert not compiled.recaptures


OF_A_SIZE = """
def program(x):
    return x * 2 if type(x.shape[0]) is int and type(x.shape[0])(3.7) == 3 else -x
"""


def test_the_type_of_an_open_size() -> None:
    """It was refused, by a StopIteration of ours."""
    exec(compile(OF_A_SIZE, "<cell 8>", "exec"), names := dict[str, Any]())  # noqa: S102
    cut = foretrace.capture(names["program"], (torch.ones(2),), dynamic_shapes=True).cut("aten")
    assert torch.equal(cut(torch.ones(3)), torch.full((3,), 2.0))

"""Numbers that a program counts with, left in functions and slices: each call leaves its own."""

from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

AT = SimpleNamespace(steps=0, kept=None)
X = torch.arange(9.0)


def scaled(x: Tensor, by: float = 1.0, *, more: float = 0.0) -> Tensor:
    return x * by + more


def as_a_default(x: Tensor) -> Tensor:
    AT.steps += 1
    scaled.__defaults__ = (AT.steps + 1.0,)
    return scaled(x)


def as_a_default_by_name(x: Tensor) -> Tensor:
    AT.steps += 1
    scaled.__kwdefaults__ = {"more": AT.steps + 1.0}
    return scaled(x)


def as_a_default_by_setattr(x: Tensor) -> Tensor:
    AT.steps += 1
    setattr(scaled, "__defaults__", (AT.steps + 1.0,))  # noqa: B010 - what is tested
    return scaled(x)


def in_a_cell(x: Tensor) -> Tensor:
    AT.steps += 1
    by = AT.steps + 1.0
    AT.kept = lambda x: x * by
    kept: Tensor = AT.kept(x)
    return kept


def in_a_cell_of_a_tuple(x: Tensor) -> Tensor:
    AT.steps += 1
    by = AT.steps + 1.0
    AT.kept = (lambda x: x * by, 2)
    return x * AT.steps


def in_a_slice(x: Tensor) -> Tensor:
    AT.steps += 1
    AT.kept = slice(0, AT.steps)
    return x * AT.steps


def left() -> list[Any]:
    """What a caller finds."""
    kept = AT.kept
    found = kept[0] if isinstance(kept, tuple) else kept
    used = found(X) if isinstance(found, FunctionType) else X[found or slice(9)]
    types = [type(each) for each in (*(scaled.__defaults__ or ()), AT.steps)]
    return [AT.steps, scaled(X).tolist(), used.tolist(), types]


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        as_a_default,
        as_a_default_by_name,
        as_a_default_by_setattr,
        in_a_cell,
        in_a_cell_of_a_tuple,
        in_a_slice,
    ],
)
def test_as_eager(program: Callable[[Tensor], Tensor], fullgraph: bool) -> None:
    seen = []
    for call in (program, foretrace.compile(program, fullgraph=fullgraph)):
        AT.steps, AT.kept = 0, None
        scaled.__defaults__, scaled.__kwdefaults__ = (1.0,), {"more": 0.0}
        seen.append([(call(X).tolist(), left()) for _ in range(4)])
    scaled.__defaults__, scaled.__kwdefaults__ = (1.0,), {"more": 0.0}
    assert seen[0] == seen[1]


def test_a_capture_puts_defaults_back() -> None:
    def sets(x: Tensor) -> Tensor:
        scaled.__defaults__ = (5.0,)
        return scaled(x)

    cut = foretrace.capture(sets, (X,)).cut("export")
    assert scaled.__defaults__ == (1.0,)
    assert torch.equal(cut(X), X * 5)
    assert scaled.__defaults__ == (5.0,)
    scaled.__defaults__ = (1.0,)

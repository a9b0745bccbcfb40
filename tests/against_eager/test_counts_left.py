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


# ---- what else functions have, and what is returned ----------------------------------------------


def noted(x: Tensor) -> Tensor:
    return x + 1


def as_an_annotation(x: Tensor) -> Any:
    AT.steps += 1
    noted.__annotations__["steps"] = AT.steps
    return x * 2, None


def as_other_annotations(x: Tensor) -> Any:
    AT.steps += 1
    noted.__annotations__ = {"steps": AT.steps}
    noted.__doc__ = AT.steps  # type: ignore[assignment]
    return x * 2, None


def in_an_annotation_of_what_it_returns(x: Tensor) -> Any:
    AT.steps += 1
    steps = AT.steps

    def returned(x: steps) -> None:  # type: ignore[valid-type]
        """Nothing."""

    return x * 2, returned


def in_a_cell_of_what_it_returns(x: Tensor) -> Any:
    AT.steps += 1
    steps = AT.steps
    return x * 2, lambda: steps


def in_a_default_of_what_it_returns(x: Tensor) -> Any:
    AT.steps += 1
    return x * 2, lambda steps=AT.steps: steps


def in_an_attribute_of_what_it_returns(x: Tensor) -> Any:
    AT.steps += 1

    def returned() -> None:
        """Nothing."""

    returned.steps = AT.steps  # type: ignore[attr-defined]
    return x * 2, returned


def _found(returned: Any) -> Any:
    """All that a function has, and the types of numbers in it."""
    spaces = [dict(noted.__annotations__), {"doc": noted.__doc__}]
    if returned is not None:
        spaces += [dict(returned.__annotations__), dict(returned.__dict__)]
        spaces += [dict(enumerate(each.cell_contents for each in returned.__closure__ or ()))]
        spaces += [dict(enumerate(returned.__defaults__ or ()))]
    return [AT.steps, *({k: (v, type(v)) for k, v in each.items()} for each in spaces)]


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        as_an_annotation,
        as_other_annotations,
        in_an_annotation_of_what_it_returns,
        in_a_cell_of_what_it_returns,
        in_a_default_of_what_it_returns,
        in_an_attribute_of_what_it_returns,
    ],
)
def test_functions_as_eager(program: Callable[[Tensor], Any], fullgraph: bool) -> None:
    seen, before = [], dict(noted.__annotations__)
    for call in (program, foretrace.compile(program, fullgraph=fullgraph)):
        AT.steps, noted.__annotations__, noted.__doc__ = 0, dict(before), None
        results = (call(X) for _ in range(3))
        seen.append([(result[0].tolist(), _found(result[1])) for result in results])
    noted.__annotations__, noted.__doc__ = before, None
    assert seen[0] == seen[1]

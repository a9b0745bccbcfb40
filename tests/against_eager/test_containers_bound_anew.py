"""A container that a program fills, and in the place of which it leaves another: others have it."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import foretrace


class Buffer:
    """What a step keeps, and what it has handed on."""

    rows: ClassVar[Any] = []

    def __init__(self) -> None:
        self.kept: Any = []
        self.table: dict[str, Any] = {"kept": []}
        self.other: Any = {}


buffer, rows = Buffer(), list[Any]()


def _returned(x: Tensor) -> Any:
    full = buffer.kept
    full.append(x * 2)
    buffer.kept = []
    return full


def _each_third(x: Tensor) -> Any:
    buffer.kept.append(x * 2)
    if len(buffer.kept) == 3:
        full, buffer.kept = buffer.kept, []
        return full
    return None


def _of_numbers(x: Tensor) -> Any:
    buffer.kept.append(x.sum().item())
    buffer.kept = []
    return x * 2


def _after_it_is_bound(x: Tensor) -> Any:
    full, buffer.kept = buffer.kept, [0]
    full.append(1)
    return x * 2


def _handed_on(x: Tensor) -> Any:
    buffer.kept.append(x.sum().item())
    buffer.other = buffer.kept
    buffer.kept = []
    return torch.stack([x, x])


def _in_an_entry(x: Tensor) -> Any:
    buffer.table["kept"].append(x)
    buffer.table["kept"] = []
    return x * 2


def _of_a_class(x: Tensor) -> Any:
    Buffer.rows.append(x)
    Buffer.rows = []
    return x * 2


def _of_a_module(x: Tensor) -> Any:
    global rows  # noqa: PLW0603 - that is what is looked at
    rows.append(1)
    rows = []
    return x * 2


def _read(x: Tensor) -> Any:
    buffer.kept.append(x)
    found = torch.stack(buffer.kept)
    buffer.kept = []
    return found


def _of_a_dict(x: Tensor) -> Any:
    before, buffer.other = buffer.other, {}
    before["x"] = x.sum().item()
    return x * 2


def _by_one_with_a_tensor(x: Tensor) -> Any:
    before, buffer.other = buffer.other, {"x": x}
    before["y"] = 1
    return x * 2


PROGRAMS = [
    _returned, _each_third, _of_numbers, _after_it_is_bound, _handed_on, _in_an_entry,
    _of_a_class, _of_a_module, _read, _of_a_dict, _by_one_with_a_tensor,
]  # fmt: skip
ONE_CAPTURE = [
    _returned, _of_numbers, _in_an_entry, _of_a_class, _of_a_module, _read, _of_a_dict,
]  # fmt: skip
ROUTES: dict[str, Callable[[Any, Tensor], Any]] = {
    "compile": lambda compiled, x: compiled(x),
    "cut": lambda program, x: foretrace.capture(program, (x,)).cut("export")(x),
}


def _places() -> tuple[Any, ...]:
    return buffer.kept, buffer.table["kept"], buffer.other, Buffer.rows, rows


def _seen(program: Any, call: Callable[[Any, Tensor], Any]) -> Any:
    """What each call gives and leaves, as one sees it who holds what was there before the call."""
    global rows
    buffer.__init__()  # type: ignore[misc]
    rows, Buffer.rows = [], []
    seen = []
    for number in range(4):
        places = _places()
        result = call(program, torch.full((2,), float(number)))
        now = _places()
        same = [[one is other for other in (*now, result)] for one in places]
        seen.append((repr(places), repr(now), repr(result), same))
    return seen


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_who_has_it_finds_what_was_put_there(program: Any, route: str) -> None:
    compiled = foretrace.compile(program, fullgraph=True) if route == "compile" else program
    expected = _seen(program, lambda fn, x: fn(x))
    assert _seen(compiled, ROUTES[route]) == expected
    if route == "compile" and program in ONE_CAPTURE:
        assert not compiled.recaptures

"""Methods of C that a program holds bound to an object: `table.get`, `items.append`."""

import functools
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.recaptured import captured_again_after

Read = tuple[Callable[[Tensor], Tensor], Callable[[], object]]
"""A program, and what changes the object that its method is bound to"""


class Calls(nn.Module):
    """A module that has a function."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        found = self.function(len(x))
        return x * (1.0 if found is None else found)


def table() -> dict[int, float]:
    return {2: 2.0, 4: 4.0}


def in_a_cell() -> Read:
    held = table()
    get = held.get
    return lambda x: x * get(2, 0), lambda: held.update({2: 5.0})


def in_a_list() -> Read:
    held = table()
    methods = [held.get]
    return lambda x: x * methods[0](2, 0), held.clear


def by_default() -> Read:
    held = table()

    def program(x: Tensor, get: Any = held.get) -> Tensor:
        return x * get(2, 0)

    return program, lambda: held.update({2: 5.0})


def of_a_class() -> Read:
    held = table()

    class Settings:
        get = held.get

    return lambda x: x * Settings.get(2, 0), lambda: held.update({2: 5.0})


def of_a_module() -> Read:
    held = table()
    return Calls(held.__getitem__), lambda: held.update({2: 5.0})


def of_an_object() -> Read:
    held = SimpleNamespace(count=[1, 2, 2].count, items=[1])
    held.count = held.items.count
    return lambda x: x * held.count(1), lambda: held.items.append(1)


def in_a_partial() -> Read:
    held = [1.0, 2.0]
    first = functools.partial(held.__getitem__, 0)
    return lambda x: x * first(), lambda: held.__setitem__(0, 3.0)


def a_length() -> Read:
    held = [1.0]
    length = held.__len__
    return lambda x: x * length(), lambda: held.append(2.0)


@pytest.mark.parametrize("made", [
    in_a_cell, in_a_list, by_default, of_a_class, of_a_module, of_an_object, in_a_partial, a_length,
])  # fmt: skip
def test_what_it_reads_is_a_guard(made: Callable[[], Read]) -> None:
    captured_again_after(*made(), torch.ones(2))


Written = tuple[Any, Callable[[int], Any]]
"""An object, and a method that changes it"""


def appends() -> Written:
    items = [0.0]
    return items, items.append


def adds() -> Written:
    items = {0}
    return items, items.add


def sets_default() -> Written:
    entries: dict[int, Any] = {}
    return entries, entries.setdefault


def extends() -> Written:
    items = [0.0]
    extend = items.__iadd__
    return items, lambda count: len(extend([float(count)]))


def deletes() -> Written:
    items = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    return items, items.__delitem__


WRITERS = [appends, adds, sets_default, extends, deletes]


@pytest.mark.filterwarnings("ignore:.* is not captured whole")  # a list that grows is read
@pytest.mark.parametrize("made", WRITERS)
def test_what_it_writes_is_as_eagers(made: Callable[[], Written]) -> None:
    (state, method), (expected, eager) = made(), made()
    compiled, module = foretrace.compile(Calls(method)), Calls(eager)
    for _ in range(3):
        x = torch.ones(2)
        assert not list(differences(module(x), compiled(x), "result"))
        assert state == expected


@pytest.mark.parametrize("made", WRITERS)
def test_a_capture_leaves_the_object_as_it_was(made: Callable[[], Written]) -> None:
    (state, method), (before, _) = made(), made()
    with suppress(foretrace.Refusal):  # of an object that is found by no other way
        foretrace.capture(Calls(method), (torch.ones(2),))
    assert state == before

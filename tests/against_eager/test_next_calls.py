"""A program that finds another state at its next call: each route is right for that, or refuses."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits


class Box:
    def __init__(self, number: int) -> None:
        self.number = number


class Counting(nn.Module):
    """Computes with all of its state, then changes some."""

    def __init__(self, change: Callable[["Counting"], object]) -> None:
        super().__init__()
        self.act, self.change, self.number, self.box = nn.Tanh(), change, 1, Box(1)
        self.items, self.table, self.members, self.queue = [1], {"k": 1}, {1}, deque([1])
        self.boxes: dict[Any, Box] = {"b": Box(1)}

    def forward(self, x: Tensor) -> Tensor:
        found = self.number + self.box.number + self.boxes["b"].number + len(self.boxes)
        found += sum(self.items) + len(self.items) + sum(self.table.values()) + len(self.table)
        y = self.act(x * (found + len(self.members) + self.queue[0]))
        self.change(self)
        return y


def another_number(m: Counting) -> None:
    m.number += 1


def attribute_of_an_object(m: Counting) -> None:
    m.box.number += 1


def another_object(m: Counting) -> None:
    m.box = Box(m.box.number + 1)


def another_module(m: Counting) -> None:
    m.act = nn.ReLU()


def another_list(m: Counting) -> None:
    m.items = [*m.items, 1]


def one_more_item(m: Counting) -> None:
    m.items.append(1)


def another_item(m: Counting) -> None:
    m.items[0] += 1


def another_first_one(m: Counting) -> None:
    m.queue[0] += 1


def another_entry(m: Counting) -> None:
    m.table["k"] += 1


def one_more_entry(m: Counting) -> None:
    m.table[str(len(m.table))] = 1


def one_more_member(m: Counting) -> None:
    m.members.add(len(m.members) + 1)


def another_object_in_an_entry(m: Counting) -> None:
    m.boxes["b"] = Box(m.boxes["b"].number + 1)


def one_more_object(m: Counting) -> None:
    m.boxes[len(m.boxes)] = Box(1)


def nothing(m: Counting) -> None:
    pass


CHANGES = (
    another_number, attribute_of_an_object, another_object, another_module, another_list,
    one_more_item, another_item, another_first_one, another_entry, one_more_entry,
    one_more_member, another_object_in_an_entry, one_more_object, nothing,
)  # fmt: skip


def loaded(module: nn.Module, x: Tensor, path: Path) -> Any:
    foretrace.capture(module, (x,)).save(path / "m.ft", "export")
    return foretrace.load(path / "m.ft")


def aot(module: nn.Module, x: Tensor, path: Path) -> Any:
    graph, _ = foretrace.aot_export_module(module, (x,), trace_joint=False)
    return lambda x: graph(x)[0]


ROUTES: dict[str, Callable[[nn.Module, Tensor, Path], Any]] = {
    "export": lambda module, x, path: foretrace.export(module, (x,)).module(),
    "aot_export_module": aot,
    "load": loaded,
    "cut": lambda module, x, path: foretrace.capture(module, (x,)).cut("export"),
    "fullgraph": lambda module, x, path: foretrace.compile(module, fullgraph=True),
    "compile": lambda module, x, path: foretrace.compile(module),
}


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_call_is_eagers_or_refused(change: Any, route: str, tmp_path: Path) -> None:
    eager, x = Counting(change), torch.randn(3) / 10
    wanted = [eager(x) for _ in range(3)]
    found, refused = list[Tensor](), None
    try:
        fn = ROUTES[route](Counting(change), x, tmp_path)
        for _ in wanted:
            found.append(fn(x))
    except foretrace.Refusal as refusal:
        refused = refusal.kind
    assert refused in (None, "side effect", "guard broken", "not saved")
    assert refused is None or (route != "compile" and change is not nothing)
    assert all(map(same_bits, found, wanted))

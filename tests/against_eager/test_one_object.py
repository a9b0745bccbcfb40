"""What a program returns or leaves is one object wherever eager has one, in each call."""

import copy
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

import foretrace

HISTORY: list[Tensor] = []


@dataclass
class Cache:
    keys: Tensor
    values: list[Tensor]


class Net(nn.Module):
    """Has a cache, a history, and a table that hold tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.cache: Any = [torch.ones(3)]
        self.old: Any = None
        self.history: Any = [torch.zeros(3)]
        self.table: Any = {"first": [torch.ones(2)]}
        self.pair: Any = ([torch.ones(1)], [[torch.ones(3)]])
        self.sizes: Any = [1, [2]]


class StoresAList(Net):
    def forward(self, x: Tensor) -> Any:
        self.cache = [self.linear(x), x]
        return self.cache


class ReturnsAPart(Net):
    def forward(self, x: Tensor) -> Any:
        self.cache = {"hidden": [self.linear(x)]}
        return x, self.cache["hidden"]


class StoresATuple(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        self.cache = ([h], h)
        return self.cache


class StoresAnObject(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        self.cache = Cache(h, [h + 1])
        return self.cache, self.cache.values


class FillsATable(Net):
    def forward(self, x: Tensor) -> Any:
        self.table["last"] = [self.linear(x)]
        return self.table["last"], self.table


class Appends(Net):
    def forward(self, x: Tensor) -> Any:
        self.history.append([self.linear(x)])
        return self.history[-1]


class ReturnsWhatItHas(Net):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x) + self.cache[0], self.cache, self.table["first"]


class ReturnsAnItem(Net):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x) * self.pair[0][0], self.pair[0], self.pair[1][0]


class ReturnsATuple(Net):
    def forward(self, x: Tensor) -> Any:
        return self.linear(x), self.pair, self.sizes


class StoresNumbers(Net):
    def forward(self, x: Tensor) -> Any:
        self.sizes = [*x.shape]
        return self.linear(x), self.sizes


class StoresOldNumbers(Net):
    def forward(self, x: Tensor) -> Any:
        self.old = {"sizes": self.sizes}
        return self.linear(x), self.old


class ReturnsItTwice(Net):
    def forward(self, x: Tensor) -> Any:
        both = [self.linear(x)]
        return both, {"again": both}, self.history, (self.history, both)


class BindsEqualNumbers(Net):
    """The list that it binds is equal to the one that was there."""

    def __init__(self) -> None:
        super().__init__()
        self.old = [1, 2]

    def forward(self, x: Tensor) -> Any:
        self.old = self.sizes
        return self.linear(x)


class LeavesOneAtTwoNames(Net):
    def forward(self, x: Tensor) -> Any:
        self.old = {"shape": [*x.shape]}
        self.sizes = self.old
        return self.linear(x)


class ReturnsTheOld(Net):
    def forward(self, x: Tensor) -> Any:
        self.old = self.cache
        self.cache = [self.linear(x)]
        return self.cache, self.old


class StoresTheOldInTheNew(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        self.old = (self.history, h)
        return h


class StoresWhatItFills(Net):
    def forward(self, x: Tensor) -> Any:
        h = self.linear(x)
        self.history.append(h)
        self.old = {"history": self.history, "last": h}
        return h, self.old


class HasTwoNames(Net):
    def forward(self, x: Tensor) -> Any:
        self.old = self.cache
        return self.linear(x), self.old


class ReturnsAGlobal(Net):
    def forward(self, x: Tensor) -> Any:
        if not HISTORY:
            return self.linear(x), None
        return self.linear(x) * HISTORY[0], HISTORY


class CountsBesideAList(Net):
    """Counts in what holds a list, too: that stays the very one."""

    def forward(self, x: Tensor) -> Any:
        self.table = {"n": self.table.get("n", 0) + 1, "first": self.table["first"]}
        return self.linear(x) * self.table["n"], self.table["first"]


class AppendsBesideNumbers(Net):
    def forward(self, x: Tensor) -> Any:
        self.sizes.append([self.linear(x)])
        return self.sizes[-1]


class WritesBesideAList(Net):
    def forward(self, x: Tensor) -> Any:
        self.pair[1].append(len(self.pair[1]))
        self.pair[1][-1] += 1
        return self.linear(x) * len(self.pair[1])


class ReturnsATwice(Net):
    """What is at two places of a result is one object, new or not, whatever it lies in."""

    def forward(self, x: Tensor) -> Any:
        h = [self.linear(x)]
        pair = (h, self.cache)
        self.old = [h]
        return pair, [pair, (h, [])], {"again": pair, "cache": self.cache, "sizes": self.sizes}


class ReturnsNewOnesTwice(Net):
    def forward(self, x: Tensor) -> Any:
        h, empty = Cache(self.linear(x), [x + 1]), list[Tensor]()
        return h, empty, {"h": h, "values": h.values, "empty": empty}


PROGRAMS = (
    ReturnsATwice, ReturnsNewOnesTwice, CountsBesideAList, AppendsBesideNumbers, WritesBesideAList,
    StoresAList, ReturnsAPart, StoresATuple, StoresAnObject, FillsATable, Appends,
    ReturnsWhatItHas, ReturnsAnItem, ReturnsATuple, StoresNumbers, StoresOldNumbers,
    ReturnsItTwice, BindsEqualNumbers, LeavesOneAtTwoNames,
    ReturnsTheOld, StoresTheOldInTheNew, StoresWhatItFills, HasTwoNames, ReturnsAGlobal,
)  # fmt: skip


def reached(item: Any) -> Iterator[Any]:
    """An item and what it holds, in order."""
    if isinstance(item, int):
        return
    yield item
    if isinstance(item, dict):
        item = [*item.values()]
    elif isinstance(item, Cache):
        item = [item.keys, item.values]
    for each in item if isinstance(item, (list, tuple)) else ():
        yield from reached(each)


def shared(module: Net, result: Any) -> tuple[list[int], list[Any]]:
    """Which of all that a module holds and returns are one object; and their values."""
    ends = (
        module.cache,
        module.old,
        module.history,
        module.table,
        module.pair,
        module.sizes,
        HISTORY,
        result,
    )
    every = [each for end in ends for each in reached(end)]
    numbers: dict[int, int] = {}
    tensors = [each.tolist() for each in every if isinstance(each, Tensor)]
    return [numbers.setdefault(id(each), len(numbers)) for each in every], tensors


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_is_one_object(kind: type[Net], backend: str) -> None:
    HISTORY[:] = [torch.full((3,), 2.0)]
    eager = kind()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, backend=backend, fullgraph=True)
    kept = []
    for call in range(5):
        x = torch.full((2, 3), float(call))
        found, expected = compiled(x), eager(x)
        assert shared(ours, found) == shared(eager, expected)
        if call == 2:  # the caller may write to what he has got, and the module may get another
            for module, result in ((ours, found), (eager, expected)):
                lists = [each for each in reached(result) if isinstance(each, list)]
                for each in lists[:1]:
                    each.append(torch.ones(3))
                module.history = [torch.ones(3)]
        kept.append((found, expected))
    for found, expected in kept:
        assert shared(ours, found) == shared(eager, expected)


class Filled:
    """Holds no tensor at first."""

    def __init__(self) -> None:
        self.kept: Any = []
        self.calls = 0


def fills_when_empty(x: Tensor, filled: Filled) -> Any:
    filled.calls += 1
    if len(filled.kept) <= 0:
        filled.kept.append(x * 2)
    return x, {"filled": filled, "kept": filled.kept}


def binds(x: Tensor, filled: Filled) -> Any:
    filled.kept = [x * 2]
    return filled.kept, {"filled": filled, "kept": filled.kept}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [fills_when_empty, binds])
def test_an_argument_without_a_tensor_is_filled_and_returned(program: Any, backend: str) -> None:
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    one, other = Filled(), Filled()
    for call in range(4):
        x = torch.full((2,), float(call))
        found, expected = compiled(x, one), program(x, filled=other)
        for filled, (_, result) in ((one, found), (other, expected)):
            assert result["filled"] is filled
            assert result["kept"] is filled.kept
        assert one.calls == other.calls
        assert [each.tolist() for each in one.kept] == [each.tolist() for each in other.kept]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kind", [StoresAList, ReturnsAPart, StoresATuple])
def test_no_call_of_a_graph_is_kept_alive(kind: type[Net], backend: str) -> None:
    """A capture has what it found as its example; the calls of its graph leave nothing."""
    module = kind()
    compiled = foretrace.compile(module, backend=backend, fullgraph=True)
    refs = list[ref[Tensor]]()
    for call in range(5):
        found = [*reached(compiled(torch.full((2, 3), float(call))))]
        refs += [ref(each) for each in found[1:] if isinstance(each, Tensor) and call > 1]
        del found
    module.cache = None
    gc.collect()
    assert refs
    assert not [each for each in refs if each() is not None]


def given_by_default(x: Tensor, seen: Any = [1, 2], *, opts: Any = {"a": [1]}) -> Any:  # noqa: B006
    return seen, opts, opts["a"], x * 2


def _its_default(x: Tensor, pair: Any = (1, [2])) -> Any:
    return pair


def of_a_function_that_it_calls(x: Tensor) -> Any:
    return _its_default(x), [_its_default(x)[1]], {}, x * 2


def fills_its_default(x: Tensor, seen: Any = []) -> Any:  # noqa: B006
    seen.append(x * 2)
    return seen, [], {}, x


def _are_defaults(results: Any) -> list[bool]:
    places = *given_by_default.__defaults__, *given_by_default.__kwdefaults__.values()
    places += *_its_default.__defaults__, *fills_its_default.__defaults__
    first, second, third, _ = results
    inside = given_by_default.__kwdefaults__["opts"]["a"]
    known = [*places, inside, _its_default.__defaults__[0][1]]
    every = [first, second, third, *(second if isinstance(second, list) else [])]
    return [any(each is other for other in known) for each in every]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "program", [given_by_default, of_a_function_that_it_calls, fills_its_default]
)
def test_a_default_is_returned_itself(program: Any, backend: str) -> None:
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        found, expected = compiled(torch.ones(2)), program(torch.ones(2))
        assert _are_defaults(found) == _are_defaults(expected)
        assert any(_are_defaults(found))
    fills_its_default.__defaults__[0].clear()


def puts_one_row_into_three(kept: dict[str, Any], d: dict[str, Any], x: Tensor) -> Any:
    row = [x * 2]
    kept["rows"].extend([row, row])
    d["row"], kept["last"] = {"of": row}, row
    return row


def binds_data_and_an_argument(kept: dict[str, Any], d: dict[str, Any], x: Tensor) -> Any:
    row = [1]
    d["row"], kept["last"] = row, (row, d)
    return x + 1


@pytest.mark.parametrize("fn", [puts_one_row_into_three, binds_data_and_an_argument])
def test_what_is_new_is_built_once(fn: Any) -> None:
    """In all places of state and arguments, and in the result."""
    sides = list[Any]()
    for each in (fn, foretrace.compile(fn, fullgraph=True)):
        kept: dict[str, Any] = {"rows": [], "last": None}
        step = partial(each, kept)
        for n in range(2):
            d: dict[str, Any] = {"x": torch.full((2,), float(n))}
            result = step(d, d["x"])
            last = kept["last"]
            row = last[0] if isinstance(last, tuple) else last
            same = [row is item for item in (*kept["rows"], d["row"], result)]
            same += [isinstance(last, tuple) and last[1] is d, *map(str, (kept, d, result))]
            sides.append((n, same))
    assert sides[:2] == sides[2:]

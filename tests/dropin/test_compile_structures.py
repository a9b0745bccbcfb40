"""Named tuples, objects and short tuples among arguments, results and attributes of a callable."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

X = torch.arange(6.0).view(2, 3)


class Pair(NamedTuple):
    left: Any
    right: Any = 2


class Doubled(Pair):
    """One that iterates in its own way."""

    def __iter__(self) -> Any:
        return iter([self[0], self[1]])


@dataclass
class Box:
    x: Any
    scale: Any = 2
    more: dict[str, Any] = field(default_factory=dict)


class Slotted:
    __slots__ = ("scale", "x")

    def __init__(self, x: Any, scale: Any = 2) -> None:
        self.x, self.scale = x, scale


class Loose:
    def __init__(self, x: Any, scale: Any = 2) -> None:
        self.x, self.scale = x, scale

    def __setattr__(self, name: str, item: Any) -> None:
        assert not isinstance(item, str), "code of the class"
        super().__setattr__(name, item)


Other = namedtuple("Other", "left right")  # noqa: PYI024


def of_pair(pair: Any) -> Any:
    return type(pair)(pair.left * pair.right, pair.left + 1)


def of_box(box: Any) -> Any:
    for each in box.more.values():
        box = Box(box.x + each, box.scale, box.more)
    return Box(box.x * box.scale, box.scale, {"kept": [box.x, (box.scale, None)]})


def of_loose(given: Any) -> Any:
    return type(given)(given.x * given.scale, given.scale)


Calls = tuple[Callable[[Any], Any], list[Any], int]
CASES: dict[str, Calls] = {
    "named tuples": (
        of_pair, [Pair(X), Pair(X + 1), Pair(X, 3), Pair(X, 2.0), Other(X, 2), Pair(X, X)], 5
    ),
    "own iteration": (of_pair, [Doubled(X), Doubled(X, 3), Pair(X)], 3),
    "nested": (
        lambda given: [of_pair(each) for each in given["pairs"]],
        [{"pairs": (Pair(X), Pair(X + 1, 3))}, {"pairs": (Pair(X), Other(X + 1, 3))},
         {"pairs": [Pair(X), Pair(X + 1, 3)]}], 3,
    ),
    "dataclasses": (
        of_box,
        [Box(X), Box(X + 1), Box(X, 3), Box(X, True), Box(X, 2, {"a": X}), Box(X, 2, {"b": X}),
         Box(X, 2, {"a": 1}), Box(X, 2, {"a": X + 1})], 7,
    ),
    "objects": (
        of_loose, [Loose(X), Loose(X + 1), Loose(X, 3), SimpleNamespace(x=X, scale=2)], 0
    ),
    "slots": (of_loose, [Slotted(X), Slotted(X + 1), Slotted(X, 3)], 2),
}  # fmt: skip


def plain(item: Any) -> Any:
    """The same for comparing: objects as their attributes, each with its class."""
    if isinstance(item, (Box, Loose, SimpleNamespace)):
        return [type(item).__name__, *map(plain, vars(item).items())]
    if isinstance(item, Slotted):
        return ["Slotted", plain(item.x), plain(item.scale)]
    if isinstance(item, (tuple, list)):
        return [type(item).__name__, *map(plain, item)]
    if isinstance(item, dict):
        return [*map(plain, item.items())]
    return item if isinstance(item, Tensor) else (type(item).__name__, item)


@pytest.mark.filterwarnings("ignore:.*was captured again")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", CASES)
def test_calls(case: str, backend: str) -> None:
    """Each call is as eager's, in whatever order, and as many captures are made as it takes."""
    fn, given, captures = CASES[case]
    if case == "objects":
        given = given[: 3 if fn is of_loose else None]
    compiled = foretrace.compile(fn, backend=backend, fullgraph=True)
    for call in (*given, *reversed(given)):
        assert not list(differences(plain(compiled(call)), plain(fn(call)), case))
    assert not captures or len(compiled.recaptures) < captures


def test_an_attribute_more() -> None:
    compiled = foretrace.compile(of_box, fullgraph=True)
    one, other = Box(X), Box(X)
    other.note = 1  # type: ignore[attr-defined]
    compiled(one)
    compiled(other)
    assert len(compiled.recaptures) == 1
    assert "the attributes of args_0: keys" in compiled.recaptures[0].reason


class Shaped(nn.Module):
    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Any:
        first, *rest = self.shape
        return x * first, [type(each).__name__ for each in (self.shape, first, *rest)], rest


SHAPES = [
    (2,), (3,), (2.0,), (True,), [2], (2, None), (2, "a"), (2, (1, 2)), (2, (1, 2.0)), (2, [1, 2]),
    (2, 0.0), (2, -0.0), (2, float("nan")), (2, torch.float32), (2, 1, 1, 1, 1, 1), torch.Size([2]),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*was captured again")
def test_attributes() -> None:
    """Short tuples and lists are compared item by item: by value and type."""
    net = Shaped((2,))
    compiled = foretrace.compile(net, fullgraph=True)
    for shape in (*SHAPES, *reversed(SHAPES)):
        net.shape = shape
        assert repr(compiled(X)) == repr(net(X))
    assert len(compiled.recaptures) == len(SHAPES) - 1
    net.shape = [2]
    compiled(X)
    count = len(compiled.recaptures)
    net.shape[0] = 5
    assert repr(compiled(X)) == repr(net(X))
    assert len(compiled.recaptures) == count + 1


class Leaves(nn.Module):
    """What it leaves is nested, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = {"sum": torch.zeros(2, 3), "calls": 0, "last": (torch.zeros(()), [1.5])}
        self.alone = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.kept["sum"] * self.kept["last"][1][0] + self.alone
        self.kept = {
            "sum": self.kept["sum"] + x, "calls": self.kept["calls"] + 1,
            "last": (out.mean(), [1.5]),
        }  # fmt: skip
        self.alone = out.sum()
        return out


def test_what_is_left_and_read() -> None:
    net, eager = Leaves(), Leaves()
    compiled = foretrace.compile(net, fullgraph=True)
    for step in range(8):
        if step == 4:  # other plain data, and another nesting, where the state is
            for each in (net, eager):
                each.kept["last"][1][0] = 2.5
        if step == 6:
            for each in (net, eager):
                each.kept = each.kept | {"last": (*each.kept["last"], 1)}
        assert not list(differences(compiled(X), eager(X), f"step {step}"))
        assert not list(differences(net.kept, eager.kept, f"kept {step}"))
    assert 2 <= len(compiled.recaptures) <= 5

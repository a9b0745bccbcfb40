"""State in every kind of place: each call leaves it, and reads it, as eager does."""

import copy
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

Pair = namedtuple("Pair", "total kind")  # noqa: PYI024 - as users write them


def drawn(count: int = 3) -> Tensor:
    return torch.randn(count, 4)


class Keeps(nn.Module):
    """A module whose attributes are what `keep` leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running", torch.zeros(4))
        self.running: Tensor
        self.kept: Any = None


class InTuple(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        y = x if self.kept is None else x + self.kept[0] * self.kept[1]
        self.kept = (y.sum(0), y.mean(0))
        return y


class InNamedTuple(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        y = x if self.kept is None else x + self.kept.total
        self.kept = Pair(y.sum(0), "sum")
        return y


class DeepInside(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        y = x if self.kept is None else x + self.kept["a"][0]["b"]
        self.kept = {"a": [{"b": y.sum(0)}], "n": 3}
        return y


class OfCells(Keeps):
    """What an LSTM hands on is a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out, (h, c) = self.cells(x.unsqueeze(1), self.kept)
        self.kept = (h.detach(), c.detach())
        return out


class OfABuffer(Keeps):
    """A second name of a buffer that is bound anew."""

    def forward(self, x: Tensor) -> Tensor:
        self.running = self.running + x.sum(0)
        self.kept = self.running
        return x + self.kept.sum()


class Before(Keeps):
    """What was there goes to another place, read or not."""

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.older, self.oldest = torch.zeros(4), torch.ones(4), torch.ones(4) * 2

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.older
        self.oldest, self.older, self.kept = self.older, self.kept, y.sum(0)
        return y


class Exchanges(Before):
    """No tensor is new."""

    def forward(self, x: Tensor) -> Tensor:
        self.kept, self.older = self.older, self.kept
        return x + self.kept


class Among(Before):
    """New and old in one container; the old one is written to first."""

    def forward(self, x: Tensor) -> Tensor:
        self.older.add_(x.sum(0))
        self.kept = (x.mean(0), self.older, "both")
        return x + self.kept[1]


MODULES = [InTuple, InNamedTuple, DeepInside, OfCells, OfABuffer, Before, Exchanges, Among]


def same(ours: Any, eager: Any, what: str) -> None:
    assert not [*differences(eager, ours, what)]


def state(module: Keeps) -> list[Any]:
    names = ("kept", "running", "older", "oldest")
    held = [getattr(module, name, None) for name in names]
    return [*held, [one is other for one in held for other in held]]


@pytest.mark.parametrize("kind", MODULES)
def test_in_a_module(kind: type[Keeps]) -> None:
    eager = kind()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, fullgraph=True)
    for step in range(5):
        x = drawn()
        same(compiled(x), eager(x), f"result {step}")
        same(state(ours), state(eager), f"state {step}")
    assert len(compiled.recaptures) <= 1
    cut = foretrace.capture(ours, (drawn(),)).cut("aten")
    for _ in range(2):
        x = drawn()
        same(cut(x), eager(x), "result of a cut")
        same(state(ours), state(eager), "state of a cut")


class Slots:
    __slots__ = ("kept", "steps")

    def __init__(self) -> None:
        self.kept, self.steps = drawn(), 0


class Both(Slots):
    def __init__(self) -> None:
        super().__init__()
        self.more = drawn()


@dataclass
class Extended:
    kept: Tensor = field(default_factory=drawn)
    steps: int = 0

    def __post_init__(self) -> None:
        self.more = self.kept * 2


def moves(x: Tensor, item: Any) -> Tensor:
    y = x + item.kept * getattr(item, "more", 1)
    item.kept, item.steps = y * 2, 7
    if hasattr(item, "more"):
        item.more = y[0]
    return y


def facts(item: Any) -> list[Any]:
    return [getattr(item, name, None) for name in ("kept", "steps", "more")]


@pytest.mark.parametrize("kind", [Slots, Both, Extended])
def test_on_an_object_among_the_arguments(kind: type) -> None:
    """Slots, and what a dataclass has beside its fields, are what it is made of, too."""
    compiled = foretrace.compile(moves, fullgraph=True)
    for _ in range(3):
        x, ours = drawn(), kind()
        eager = copy.deepcopy(ours)
        same(compiled(x, ours), moves(x, eager), "result")
        same(facts(ours), facts(eager), "object")
    assert not compiled.recaptures
    cut = foretrace.capture(moves, (drawn(), kind())).cut("aten")
    x, ours = drawn(), kind()
    eager = copy.deepcopy(ours)
    same(cut(x, ours), moves(x, eager), "result of a cut")
    same(facts(ours), facts(eager), "object of a cut")


def test_an_attribute_that_an_input_lacked() -> None:
    """The program sets it, and reads it where the same tensor comes again."""

    def tagged(x: Tensor) -> Tensor:
        y = x + getattr(x, "tag", 0)
        x.tag = y * 2  # type: ignore[attr-defined]
        return y

    compiled, ours = foretrace.compile(tagged, fullgraph=True), drawn()
    eager = ours.clone()
    for _ in range(3):
        same(compiled(ours), tagged(eager), "result")
        same(vars(ours)["tag"], vars(eager)["tag"], "attribute")
    first = drawn()
    cut = foretrace.capture(tagged, (first,)).cut("aten")
    cut(first)
    with pytest.raises(foretrace.Refusal, match="the capture saw nothing"):
        cut(first)


def kind_of(call: Callable[[], object]) -> str | None:
    try:
        call()
    except foretrace.Refusal as refusal:
        return refusal.kind
    return None


def grows(x: Tensor, one: list[Tensor], other: list[Tensor]) -> Tensor:
    one.append(x * 2)
    return x + len(other)


def test_a_container_at_two_places() -> None:
    """It is one object to the program, and a call where it is two is another."""
    x = drawn()
    compiled = foretrace.compile(grows, fullgraph=True)
    cut = foretrace.capture(grows, (x, [x], [x + 1])).cut("aten")
    for _ in range(2):
        sides = []
        for fn in (grows, compiled):
            shared = [x]
            sides.append((fn(x, [x], [x + 1]), fn(x, shared, shared), shared))
        same(*sides, "one list twice")
    assert len(compiled.recaptures) == 1
    shared = [x]
    assert kind_of(lambda: cut(x, shared, shared)) == "guard broken"
    assert len(shared) == 1


def test_state_that_shares_memory_with_a_written_input() -> None:
    """In the capture it did not; a later call is refused: the graph reads it before the write."""

    class Views(nn.Module):
        kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            x.add_(1)
            y = x * 2 if self.kept is None else x + self.kept * 3
            self.kept = x[0]
            return y

    compiled, one, other = foretrace.compile(Views(), fullgraph=True), drawn(), drawn()
    compiled(one), compiled(other)
    assert kind_of(lambda: compiled(other)) == "aliased inputs"


def test_an_argument_that_holds_itself() -> None:
    item = Both()
    item.more = item  # type: ignore[assignment]
    item.kept = drawn()
    assert kind_of(lambda: foretrace.capture(lambda x, i: x, (drawn(), item))) is not None
    loop: list[Any] = [drawn()]
    loop.append(loop)
    assert kind_of(lambda: foretrace.capture(lambda x: x[0], (loop,))) == "nested in itself"
    assert (
        kind_of(lambda: foretrace.compile(lambda x: x[0], fullgraph=True)(loop))
        == "nested in itself"
    )


SPACE: dict[str, Any] = {}
"""What holds itself, as a module does that keeps its own `globals()`"""


def test_a_global_that_holds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of what it has is read, where another is bound there, too."""

    def holding(gain: float) -> dict[str, Any]:
        space: dict[str, Any] = {"gain": gain, "bias": drawn()}
        space["all"] = space
        return space

    def program(x: Tensor) -> Tensor:
        return x * SPACE["gain"]

    compiled = foretrace.compile(program, fullgraph=True)
    for gain, rows in ((2.0, 3), (2.0, 5), (3.0, 5), (4.0, 6)):
        if gain != SPACE.get("gain"):
            monkeypatch.setitem(globals(), "SPACE", holding(gain))
        x = torch.randn(rows)
        assert torch.equal(compiled(x), program(x))


def test_an_open_number_among_the_arguments_is_a_number() -> None:
    """And not an object that leads to every size that torch knows of."""
    fn = lambda x, n: x[:n] * n  # noqa: E731
    auto = torch.export.Dim.AUTO
    program = foretrace.capture(fn, (drawn(), 2), dynamic_shapes={"x": {0: auto}, "n": auto})
    x = drawn(5)
    same(program.cut("aten")(x, 4), fn(x, 4), "result")
    behind = torch.compile(fn, backend="foretrace", dynamic=True)
    same(behind(x, 3), fn(x, 3), "result behind Dynamo")


class Framework:
    """Knows a module of Python's by name, as the backends of einops do."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.factor = module, 2


def test_a_module_that_a_made_object_knows_is_no_container() -> None:
    module, made = ModuleType("module"), dict[type, Framework]()
    vars(module)["all"] = [vars(module)]

    def fn(x: Tensor) -> Tensor:
        if Tensor not in made:
            made[Tensor] = Framework(module)
        return x * made[Tensor].factor

    x = drawn()
    program = foretrace.capture(fn, (x,))
    assert made == {}
    same(program.cut("export")(x), x * 2, "result")


class Sized(nn.Module):
    """Keeps the sizes for which it has made a tensor, as a grid of positions does."""

    sizes: torch.Size | None = None
    grid: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.sizes != x.shape[1:]:
            self.grid = torch.ones(x.shape[1:])
            self.sizes = x.shape[1:]
        return x * self.grid


@pytest.mark.parametrize("fullgraph", [True, False])
def test_open_sizes_that_are_left(*, fullgraph: bool) -> None:
    ours, eager = Sized(), Sized()
    compiled = foretrace.compile(ours, fullgraph=fullgraph)
    for shape in ((2, 3, 4), (2, 3, 4), (2, 5, 6), (2, 7, 6), (2, 3, 4)):
        x = torch.randn(shape)
        assert torch.equal(compiled(x), eager(x))
        assert (type(ours.sizes), ours.sizes) == (torch.Size, eager.sizes)

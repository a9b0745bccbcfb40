"""Lists, deques, dicts and sets that a program fills and empties stay the objects that they are."""

import copy
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.turns import crossed


class Filling(nn.Module):
    """A layer, and something that it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.kept: Any = self.empty()

    def empty(self) -> Any:
        raise NotImplementedError

    def keep(self, y: Tensor) -> Any:
        """Keeps, and gives what is added to the result."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        more = self.keep(y.detach())
        return y.sum() if more is None else (y + more).sum()


class History(Filling):
    def empty(self) -> Any:
        return []

    def keep(self, y: Tensor) -> Any:
        self.kept.append(y.mean(0))
        return torch.stack(self.kept).mean(0)


class Unread(Filling):
    def empty(self) -> Any:
        return []

    def keep(self, y: Tensor) -> Any:
        self.kept.append(y)


class Window(Filling):
    def empty(self) -> Any:
        return deque(maxlen=3)

    def keep(self, y: Tensor) -> Any:
        self.kept.append(y)
        return self.kept[0]


class Shift(Filling):
    def empty(self) -> Any:
        return [torch.zeros(4), torch.ones(4)]

    def keep(self, y: Tensor) -> Any:
        self.kept.pop(0)
        self.kept.append(y[0])
        self.kept[0] = self.kept[0] * 2
        return self.kept[0]


class Slots(Filling):
    def empty(self) -> Any:
        return [0, 0.0, "a", None]

    def keep(self, y: Tensor) -> Any:
        self.kept[0] += 1
        self.kept[1] += y.sum().item()
        self.kept[3] = y
        return self.kept[0] + self.kept[1]


class Numbers(Filling):
    def empty(self) -> Any:
        return [1, 2]

    def keep(self, y: Tensor) -> Any:
        self.kept[1] += self.kept[0]
        self.kept[0] = self.kept[1] - self.kept[0]
        return self.kept[1]


class Deleted(Filling):
    def empty(self) -> Any:
        return {"a": torch.zeros(4), "b": torch.ones(4)}

    def keep(self, y: Tensor) -> Any:
        first = next(iter(self.kept))
        gone = self.kept.pop(first)
        self.kept["c" if first == "a" else "a"] = y[0]
        del self.kept["b"]
        self.kept["b"] = gone
        return gone


class Ordered(Filling):
    def empty(self) -> Any:
        return OrderedDict(a=torch.zeros(4), b=torch.ones(4))

    def keep(self, y: Tensor) -> Any:
        self.kept.move_to_end("a" if next(iter(self.kept)) == "a" else "b")
        self.kept["a"] = y[0] + self.kept["a"]
        return self.kept["b"]


class Defaults(Filling):
    def empty(self) -> Any:
        return defaultdict(list)

    def keep(self, y: Tensor) -> Any:
        self.kept["y"].append(y)
        self.kept["n"].append(len(self.kept["y"]))
        return self.kept["y"][0]


class Words(Filling):
    def empty(self) -> Any:
        return {"one"}

    def keep(self, y: Tensor) -> Any:
        self.kept.add("two")
        self.kept.discard("one")
        return len(self.kept)


class Nested(Filling):
    def empty(self) -> Any:
        return {"rows": [[]], "log": []}

    def keep(self, y: Tensor) -> Any:
        self.kept["rows"][-1].append(y)
        if len(self.kept["rows"][-1]) == 2:
            self.kept["rows"].append([])
        self.kept["log"].append({"y": y, "n": 1})
        return self.kept["log"][0]["y"]


class Names(Filling):
    """Two names of one list, made in the run, and one of an old list."""

    def empty(self) -> Any:
        return []

    def keep(self, y: Tensor) -> Any:
        self.one = self.two = [y]
        self.kept.append(y)
        self.three = self.kept


class Cleared(Filling):
    def empty(self) -> Any:
        return [torch.ones(4)]

    def keep(self, y: Tensor) -> Any:
        self.kept.extend([y[0], y[1]])
        if len(self.kept) > 4:
            self.kept.clear()
        return len(self.kept)


KINDS = [
    History, Unread, Window, Shift, Slots, Numbers, Deleted, Ordered, Defaults, Words, Nested,
    Names, Cleared,
]  # fmt: skip
MOST = {Window: 4, Shift: 1, Slots: 2, Numbers: 1, Deleted: 2, Ordered: 2, Words: 2, Cleared: 6}
"""Captures; of those that grow, one for each length"""


def plain(item: Any) -> Any:
    """Containers as lists, which the comparison knows."""
    if isinstance(item, dict):
        return [type(item).__name__, [[key, plain(each)] for key, each in item.items()]]
    if isinstance(item, (list, deque)):
        return [type(item).__name__, [plain(each) for each in item]]
    return sorted(item) if isinstance(item, set) else item


def same(ours: Any, eager: Any, what: str) -> None:
    assert not [*differences(plain(eager), plain(ours), what)]


@pytest.mark.parametrize(("kind", "backend"), crossed(KINDS, ["eager", "aot_eager"]))
def test_compiled(kind: type[Filling], backend: str) -> None:
    """Values, gradients, and the objects themselves."""
    eager = kind()
    ours = copy.deepcopy(eager)
    held, items = ours.kept, [id(each) for each in ours.kept]
    compiled = foretrace.compile(ours, backend=backend, fullgraph=True)
    for step in range(6):
        x = torch.randn(3, 4)
        before = ours.kept[:] if isinstance(ours.kept, list) else [*ours.kept]
        then = eager.kept[:] if isinstance(eager.kept, list) else [*eager.kept]
        theirs, mine = eager(x), compiled(x)
        same(mine, theirs, f"result {step}")
        same(ours.kept, eager.kept, f"state {step}")
        assert ours.kept is held
        places = [[[i for i, y in enumerate(old) if y is x] for x in now] for old, now in (
            (before, [*ours.kept]), (then, [*eager.kept]))]  # fmt: skip
        assert places[0] == places[1]
        theirs.backward()
        mine.backward()
        for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
            same(other.grad, one.grad, f"gradient {step}")
        if isinstance(ours, Names):
            assert ours.one is ours.two
            assert ours.three is ours.kept
    assert items is not None
    assert len(compiled.recaptures) < MOST.get(kind, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut(kind: type[Filling]) -> None:
    """What a cut leaves; nothing is left by the capture."""
    eager = kind()
    ours = copy.deepcopy(eager)
    x = torch.randn(3, 4)
    program = foretrace.capture(ours, (x,), verify=True)
    same(ours.kept, eager.kept, "after the capture")
    same(program.cut("aten")(x).detach(), eager(x).detach(), "result")
    same(ours.kept, eager.kept, "state")
    program = foretrace.capture(ours, (x,), verify=True)
    same(program.cut("joint", loss=0)(x)[0], eager(x).detach(), "result")
    same(ours.kept, eager.kept, "state")


LOG: list[Tensor] = []


def logs(x: Tensor) -> Tensor:
    LOG.append(x * 2)
    return x + 1


def test_a_global() -> None:
    """A list of a file."""
    LOG.clear()
    compiled = foretrace.compile(logs, fullgraph=True)
    for count in range(3):
        x = torch.randn(3)
        same(compiled(x), x + 1, "result")
        assert len(LOG) == count + 1
        assert torch.equal(LOG[-1], x * 2)


def fills(x: Tensor, out: Any, more: Any) -> Tensor:
    out.append(x * 2)
    more["seen"].appendleft(x)
    more["n"] = len(out)
    return x + len(more["seen"])


def test_arguments() -> None:
    """A list and a deque that the caller gives."""
    compiled = foretrace.compile(fills, fullgraph=True)
    ours: Any = ([], {"seen": deque(maxlen=2), "n": 0})
    eager: Any = ([], {"seen": deque(maxlen=2), "n": 0})
    seen = ours[1]["seen"]
    for _ in range(4):
        x = torch.randn(3)
        same(compiled(x, *ours), fills(x, *eager), "result")
        same([*ours], [*eager], "arguments")
        assert ours[1]["seen"] is seen
        assert seen.maxlen == 2


def test_another_object_is_captured_again() -> None:
    """A new list in the place of the one that was filled."""
    ours, eager = Unread(), Unread()
    ours.load_state_dict(eager.state_dict())
    compiled = foretrace.compile(ours, fullgraph=True)
    for _ in range(3):
        x, old = torch.randn(3, 4), ours.kept
        same(compiled(x), eager(x), "result")
        same(ours.kept, eager.kept, "state")
        ours.kept, eager.kept = [], []
        assert len(old) == 1

"""What the first call makes: it runs as Python, and what comes after it is captured."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sum()


class LazyBuffer(nn.Module):
    """A buffer that the first call registers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in self._buffers:
            self.register_buffer("table", torch.arange(4.0))
        return (self.inner(x) + self.table).sum()


class Hooks(nn.Module):
    """A hook that the first call installs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.ready = nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.inner.register_forward_hook(lambda module, args, y: y * 2)
            self.ready = True
        return self.inner(x).sum()


class Made(nn.Module):
    """A layer that the first call makes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.inner is None:
            self.inner = nn.Linear(x.shape[-1], 4)
        return self.inner(x).sum()


@functools.cache
def positions(n: int) -> Tensor:
    return torch.arange(n) * 2.0


class Memo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) + positions(4)).sum()


class ByLength(nn.Module):
    """A cache of masks, one for each length."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.masks = nn.Linear(4, 4), dict[int, Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.masks:
            self.masks[len(x)] = torch.ones(len(x), 1).tril()
        return (self.inner(x) * self.masks[len(x)]).sum()


KINDS = [Lazy, LazyBuffer, Hooks, Made, Memo, ByLength]


def same(ours: Any, eager: Any, what: str) -> None:
    assert not [*differences(eager, ours, what)]


def started(kind: type[nn.Module]) -> tuple[nn.Module, nn.Module]:
    eager = kind()
    positions.cache_clear()
    return eager, copy.deepcopy(eager)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: type[nn.Module]) -> None:
    """The first call, and those that follow, train as eager's do."""
    eager, ours = started(kind)
    compiled = foretrace.compile(ours, fullgraph=True)
    for step in range(4):
        x = torch.randn(3, 4)
        torch.manual_seed(step)
        theirs = eager(x)
        torch.manual_seed(step)
        mine = compiled(x)
        same(mine, theirs, f"result {step}")
        if step > 1:
            theirs.backward()
            mine.backward()
        for one, other in zip(eager.parameters(), ours.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            same(other.grad, one.grad, f"gradient {step}")
    assert len(compiled.recaptures) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_warm(kind: type[nn.Module]) -> None:
    """A capture that may call the program once holds."""
    eager, ours = started(kind)
    x = torch.randn(3, 4)
    torch.manual_seed(0)
    eager(x)
    torch.manual_seed(0)
    program = foretrace.capture(ours, (x,), warm=True, verify=True)
    ours.load_state_dict(eager.state_dict())
    for _ in range(2):
        x = torch.randn(3, 4)
        same(program.cut("export")(x).detach(), eager(x).detach(), "result")


@pytest.mark.parametrize("kind", [Lazy, LazyBuffer, Hooks, Memo])
def test_told(kind: type[nn.Module]) -> None:
    """Without, it says so, with the line; and the program is as it was."""
    _, ours = started(kind)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(ours, (torch.randn(3, 4),))
    assert caught.value.of_first_call
    assert "once" in " ".join(caught.value.do)
    exported = foretrace.export(ours, (torch.randn(3, 4),), warm=True)
    x = torch.randn(3, 4)
    same(exported.module()(x).detach(), ours(x).detach(), "result")


def test_what_each_call_does_is_refused() -> None:
    """One call runs as Python; the next is refused with the line."""

    class Each(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.register_buffer(f"n{len(self._buffers)}", x.clone())
            return x * 2

    module = Each()
    compiled = foretrace.compile(module, fullgraph=True)
    compiled(torch.ones(3))
    assert len([*module.buffers()]) == 1
    with pytest.raises(foretrace.Refusal, match="registers"):
        compiled(torch.ones(3))
    assert len([*module.buffers()]) == 1


class Keeps(nn.Module):
    """A state that is there from its first call on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.hidden = nn.Linear(4, 4), None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(4) if self.hidden is None else self.hidden
        self.hidden = torch.tanh(self.inner(x).sum(0) + hidden).detach()
        return self.hidden.sum()


def test_a_call_that_makes_what_later_ones_find_is_not_captured() -> None:
    """Nor made into a graph; the line does it again where the state is dropped: captured then."""
    graphs = list[Any]()

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    net = Keeps()
    eager, compiled = copy.deepcopy(net), foretrace.compile(net, backend=backend, fullgraph=True)
    for index, captures in enumerate((0, 1, 1, 2, 2)):
        if index == 3:
            net.hidden = eager.hidden = None
        x = torch.randn(2, 4)
        with torch.no_grad():
            assert torch.equal(compiled(x), eager(x))
        assert torch.equal(net.hidden, eager.hidden)
        assert len(compiled.compiled._entries) == len(graphs) == captures


class Kind:
    factor = 2.0


FILLED: dict[type, Kind] = {}


def asks_a_cache(x: Tensor) -> Tensor:
    if type(x.shape) not in FILLED:
        FILLED[type(x.shape)] = Kind()  # here
    return x * FILLED[type(x.shape)].factor


def test_a_cache_that_the_first_call_fills() -> None:
    """A cut answers once; then it says which line filled it, and what to do, which helps."""
    x = torch.randn(3)
    FILLED.clear()
    cut = foretrace.capture(asks_a_cache, (x,)).cut("export")
    same(cut(x), x * 2, "result")
    asks_a_cache(x)
    with pytest.raises(foretrace.Refusal, match=r"the capture saw \{\}") as caught:
        cut(x)
    assert caught.value.at is not None
    assert caught.value.at.function == "asks_a_cache"
    assert "warm=True" in caught.value.do[0]
    FILLED.clear()
    warm = foretrace.capture(asks_a_cache, (x,), warm=True).cut("export")
    for _ in range(3):
        same(warm(x), x * 2, "result")

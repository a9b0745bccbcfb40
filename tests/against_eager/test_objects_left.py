"""Objects with tensors that each call leaves anew: later calls find those, and need no capture."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import foretrace
from tests.support.bits import same_bits


class Box:
    def __init__(self, loc: Tensor) -> None:
        self.loc = loc


class Slots:
    __slots__ = ("loc",)

    def __init__(self, loc: Tensor) -> None:
        self.loc = loc


class Nested:
    def __init__(self, loc: Tensor) -> None:
        self.box, self.items = Box(loc), [loc * 2]

    @property
    def loc(self) -> Tensor:
        return self.box.loc + self.items[0]


class Items(dict[str, Tensor]):
    def __init__(self, loc: Tensor) -> None:
        super().__init__(loc=loc)
        self.scale = loc + 1

    @property
    def loc(self) -> Tensor:
        return self["loc"] * self.scale


def normal(loc: Tensor) -> Normal:
    return Normal(loc, torch.ones_like(loc))


KINDS = (Box, Slots, Nested, Items, normal)


class Net(nn.Module):
    """Leaves an object at each call; reads that of the call before if `reads`."""

    def __init__(self, kind: Callable[[Tensor], Any], reads: bool) -> None:
        super().__init__()
        self.linear, self.kind, self.reads = nn.Linear(3, 3), kind, reads
        self.left = self.kept = kind(torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).detach()
        before = self.left.loc if self.reads else 0
        self.left = self.kind(y)
        return self.left.loc + before


class Aliased(Net):
    """Reads also what the object was that the first call found."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.kept.loc


@pytest.mark.parametrize("route", ["cut", "fullgraph"])
@pytest.mark.parametrize("reads", [False, True], ids=["unread", "read"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("net", [Net, Aliased], ids=lambda net: net.__name__)
def test_each_call_finds_what_the_one_before_left(
    net: type[Net], kind: Callable[[Tensor], Any], reads: bool, route: str
) -> None:
    modules = [net(kind, reads) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    if net is Net:
        for module in modules:
            module(torch.zeros(2, 3))
    compiled, eager = modules
    fn: Any = foretrace.compile(compiled, fullgraph=True)
    if route == "cut":
        fn = foretrace.capture(compiled, (torch.zeros(2, 3),)).cut("export")
    found, wanted, refused = list[Tensor](), list[Tensor](), None
    for seed in range(4):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        try:
            found.append(fn(x))
        except foretrace.Refusal as refusal:
            refused = refusal.kind
            break
        wanted.append(eager(x))
    assert all(map(same_bits, found, wanted))
    if net is Aliased:  # one object at two places, of which the program binds one
        assert refused in (None, "guard broken")
    else:
        assert refused is None
        assert route == "cut" or not fn.recaptures

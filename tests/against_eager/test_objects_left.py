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


class Held:
    """An object that the arguments have."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Named(Tensor):
    """A class of the user's."""


PASSED: dict[str, Callable[[], Any]] = {
    "list": lambda: [torch.ones(2)],
    "dict": lambda: {"x": torch.ones(2)},
    "nested": lambda: {"rows": [torch.ones(2)]},
    "object": lambda: Held(torch.ones(2)),
    "tensor of a class": lambda: torch.ones(2).as_subclass(Named),
}
LEAVES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "attribute": lambda net, item: setattr(net, "kept", item),
    "item": lambda net, item: net.table.__setitem__("kept", item),
    "inside of a new one": lambda net, item: setattr(net, "kept", {"pair": (1, [item])}),
}


class Keeping(nn.Module):
    """Keeps what it gets."""

    def __init__(self, leave: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.leave, self.kept = leave, None
        self.table = dict[str, Any]()

    def forward(self, item: Any, x: Tensor) -> Tensor:
        self.leave(self, item)
        return x * 2

    def now(self) -> Any:
        """What it has kept last."""
        kept = self.table["kept"] if self.table else self.kept
        return kept["pair"][1][0] if isinstance(kept, dict) and "pair" in kept else kept


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("item", PASSED)
def test_what_an_argument_is_or_holds_is_kept_itself(item: str, leave: str) -> None:
    net, x = Keeping(LEAVES[leave]), torch.ones(2)
    compiled = foretrace.compile(net, fullgraph=True)
    for _ in range(3):
        passed = PASSED[item]()
        compiled(passed, x)
        assert net.now() is passed

"""Buffers that a call binds to tensors that are there: each name is that very tensor afterwards."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits

Bind = Callable[[Any, Tensor, Tensor], None]


class Net(nn.Module):
    """Two names of one buffer, a third of its own, an attribute; `bind` binds some."""

    def __init__(self, bind: Bind) -> None:
        super().__init__()
        self.bind = bind
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("one", torch.ones(3))
        self.register_buffer("same", self.one)
        self.register_buffer("other", torch.zeros(3))
        self.held, self.leaf = torch.full((3,), 5.0), torch.ones(3, requires_grad=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.bind(self, x, y)
        return x * self.weight


def an_argument(net: Any, x: Tensor, y: Tensor) -> None:
    net.other = y


def a_written_argument(net: Any, x: Tensor, y: Tensor) -> None:
    y.add_(1)
    net.other = y


def a_written_attribute(net: Any, x: Tensor, y: Tensor) -> None:
    net.held.mul_(2)
    net.other = net.held


def a_leaf(net: Any, x: Tensor, y: Tensor) -> None:
    net.other = net.leaf


def a_written_buffer(net: Any, x: Tensor, y: Tensor) -> None:
    net.other.add_(1)
    net.one = net.other


def exchanged(net: Any, x: Tensor, y: Tensor) -> None:
    net.one, net.other = net.other, net.one


def the_second_name(net: Any, x: Tensor, y: Tensor) -> None:
    net.same = net.one + 1


def the_first_name(net: Any, x: Tensor, y: Tensor) -> None:
    net.one = net.same + 1


def both_names(net: Any, x: Tensor, y: Tensor) -> None:
    net.one = net.same + 1
    net.same = net.one * 2


def both_to_one(net: Any, x: Tensor, y: Tensor) -> None:
    net.one = net.same = net.one + 1


def where_data_says(net: Any, x: Tensor, y: Tensor) -> None:
    if x.sum() > 0:
        net.same = net.other + 1
    else:
        net.same = net.other - 1


BINDS = [
    an_argument, a_written_argument, a_written_attribute, a_leaf, a_written_buffer, exchanged,
    the_second_name, the_first_name, both_names, both_to_one, where_data_says,
]  # fmt: skip


def whole(bind: Bind, call: Callable[[Net], Any], calls: int, x: Tensor) -> list[Any]:
    """What each call leaves: contents, and which of the tensors are one."""
    net = Net(bind)
    run, y, seen = call(net), torch.full((3,), 3.0), list[Any]()
    for _ in range(calls):
        run(x, y)
        held = [net.one, net.same, net.other, net.held, net.leaf, y]
        one = [[a is b for a in held] for b in held]
        seen += [one, *(each.detach().clone() for each in held)]
    return seen


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("bind", BINDS)
def test_compiled(bind: Bind, backend: str, follows: bool) -> None:
    x = torch.ones(3, requires_grad=follows)
    compiled = partial(foretrace.compile, backend=backend, fullgraph=True)
    same(whole(bind, compiled, 3, x), whole(bind, lambda net: net, 3, x))


@pytest.mark.parametrize("cut", ["export", "aten"])
@pytest.mark.parametrize("bind", BINDS)
def test_a_cut(bind: Bind, cut: str) -> None:
    x = torch.ones(3)

    def captured(net: Net) -> Any:
        return foretrace.capture(net, (x, torch.full((3,), 3.0))).cut(cut)

    same(whole(bind, captured, 1, x), whole(bind, lambda net: net, 1, x))


@pytest.mark.parametrize("bind", BINDS)
def test_both_sides_of_a_question(bind: Bind) -> None:
    x, y = torch.ones(3), torch.full((3,), 3.0)

    def asks(net: Any, x: Tensor, y: Tensor) -> None:
        bind(net, x, y)
        net.held.add_(1 if x.sum() > 0 else 2)

    def captured(net: Net) -> Any:
        return foretrace.capture(net, (x, y), branches="both").cut("export")

    same(whole(asks, captured, 1, x), whole(asks, lambda net: net, 1, x))


def same(ours: list[Any], eager: list[Any]) -> None:
    for given, expected in zip(ours, eager, strict=True):
        assert same_bits(given, expected) if isinstance(given, Tensor) else given == expected

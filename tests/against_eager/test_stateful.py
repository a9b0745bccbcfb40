"""Anything may change between two calls, drawn at random: eager beside compiled callables and cuts.

A compiled callable answers as eager does. A cut does so, or refuses by a guard and is made anew.
"""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.turns import crossed

GAIN = 2.0


class Config:
    alpha, beta = 1.0, 3.0

    def __init__(self) -> None:
        self.parts = [1.0, 2.0]


class Net(nn.Module):
    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.config, self.factor = Config(), 1.0

    def forward(self, x: Tensor, options: dict[str, Any]) -> Tensor:
        y = self.norm(self.linear(x)) * self.config.alpha * self.config.parts[0]
        if self.linear.weight.grad is not None:
            y = y + self.linear.weight.grad.sum()
        if x.requires_grad:
            y = y * options["power"]
        return y * (self.scale * self.factor * GAIN) + getattr(self.config, "shift", 0.0)


class World:
    """All that there is to change; `draw` changes one thing."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(seed)
        self.random, self.patch = random.Random(seed), patch
        self.net, self.options = Net(), {"power": 2.0}
        self.rows, self.wide, self.dtype, self.followed = 5, False, torch.float32, False
        self.changes: list[Callable[[], Any]] = [
            lambda: setattr(self.net, "factor", self.number()),
            lambda: setattr(self.net, "scale", self.number()),
            lambda: setattr(self.net.config, "alpha", self.number()),
            lambda: setattr(self.net.config, "shift", self.number()),
            lambda: setattr(self.net.config, "unread", self.number()),
            lambda: self.net.config.parts.__setitem__(0, self.number()),
            lambda: self.net.config.parts.append(self.number()),
            lambda: patch.setattr(Config, "alpha", self.number()),
            lambda: patch.setattr(Net, "scale", self.number()),
            lambda: patch.setitem(globals(), "GAIN", self.number()),
            lambda: setattr(self.net, "config", Config()),
            lambda: setattr(self.net, "linear", copy.deepcopy(self.net.linear)),
            lambda: setattr(self.net.linear, "weight", nn.Parameter(torch.randn(4, 4))),
            lambda: self.net.linear.weight.requires_grad_(self.flag()),
            lambda: setattr(self.net.linear.weight, "grad", self.gradient()),
            lambda: self.net.train(self.flag()),
            lambda: self.net.norm.register_forward_hook(lambda _module, _args, y: y * 2),
            lambda: setattr(self.net.norm, "eps", self.number()),
            lambda: self.options.update(power=self.number()),
            lambda: setattr(self, "rows", self.random.choice([2, 3, 5, 8])),
            lambda: setattr(self, "wide", self.flag()),
            lambda: setattr(self, "followed", self.flag()),
        ]

    def number(self) -> float:
        return self.random.choice([0.5, 1.5, 2.5])

    def flag(self) -> bool:
        return self.random.random() < 0.5

    def gradient(self) -> Tensor | None:
        return torch.randn(4, 4) if self.flag() else None

    def draw(self) -> None:
        self.random.choice(self.changes)()

    def arguments(self) -> tuple[Tensor, dict[str, Any]]:
        """Of the sizes and layout that the world is in."""
        rows = torch.randn(self.rows, 9)[:, :4] if self.wide else torch.randn(self.rows, 4)
        return rows.detach().requires_grad_(self.followed), self.options

    def answer(self, call: Callable[..., Tensor], given: Any) -> tuple[Tensor, ...]:
        """What a call gives and writes, from the state that there is, which is put back."""
        buffers = [*self.net.buffers()]
        before = [each.clone() for each in buffers]
        result = call(*given)
        after = [each.clone() for each in buffers]
        with torch.no_grad():
            for each, old in zip(buffers, before, strict=True):
                each.copy_(old)
        return (result, *after)


KINDS = ["export", "aten", "compile", "compile, open sizes"]


@pytest.mark.filterwarnings("ignore:.*was captured again")
@pytest.mark.parametrize(("seed", "kind"), crossed(range(8), KINDS))
def test_eager_beside(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, monkeypatch)
    compiled = foretrace.compile(
        world.net, dynamic=True if "open" in kind else None, fullgraph=True
    )
    cut: Any = None
    for _ in range(12):
        given = world.arguments()
        expected = world.answer(world.net, given)
        if "compile" in kind:
            found = world.answer(compiled, given)
        else:
            cut = cut or foretrace.capture(world.net, given).cut(kind)
            try:
                found = world.answer(cut, given)
            except foretrace.Refusal as refusal:
                assert refusal.kind == "guard broken", refusal  # noqa: PT017
                cut = foretrace.capture(world.net, given).cut(kind)
                found = world.answer(cut, given)
        assert all(map(torch.equal, expected, found))
        assert expected[0].requires_grad == found[0].requires_grad
        world.draw()

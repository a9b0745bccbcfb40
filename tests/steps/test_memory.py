"""A captured step holds no more at once than eager does: what it updates is written in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support.memory import of_a_step, peak

WIDE, ROWS, BATCHES = 64, 16, 5
Batches = list[tuple[Tensor, ...]]
Made = tuple[Callable[..., Any], Batches]


def batches() -> Batches:
    g = torch.Generator().manual_seed(1)
    return [
        (torch.randn(ROWS, WIDE, generator=g), torch.randn(ROWS, WIDE, generator=g))
        for _ in range(BATCHES)
    ]


def layers(count: int = 4) -> nn.Sequential:
    blocks = [(nn.Linear(WIDE, WIDE), nn.LayerNorm(WIDE), nn.ReLU(inplace=True))
              for _ in range(count)]  # fmt: skip
    return nn.Sequential(*[layer for block in blocks for layer in block])


def trained(model: nn.Module, optimizer: Any, after: Callable[[], Any] = lambda: None) -> Made:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        after()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, batches()


def for_loop() -> Made:
    model = layers()
    return trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def by_lists() -> Made:
    model = layers()
    return trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True))


def fused() -> Made:
    model = layers()
    return trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True))


def clipped_with_momentum() -> Made:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, nesterov=True)

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return trained(model, optimizer, clip)


def averaged() -> Made:
    model, average = layers(), layers()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, centered=True)

    @torch.no_grad()
    def follow() -> None:
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 0.1)

    return trained(model, optimizer, follow)


def accumulated() -> Made:
    model = layers()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step(x: Tensor, y: Tensor) -> None:
        for rows in range(0, ROWS, 4):
            loss = F.mse_loss(model(x[rows : rows + 4]), y[rows : rows + 4])
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step, batches()


def attention() -> Made:
    layer = nn.TransformerEncoderLayer(WIDE, 4, 2 * WIDE, dropout=0.1, batch_first=True)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, amsgrad=True)
    step, given = trained(layer, optimizer)
    return step, [(x[None], y[None]) for x, y in given]


MADE = [for_loop, by_lists, fused, clipped_with_momentum, averaged, accumulated, attention]


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_peak_is_not_above_eagers(make: Callable[[], Made]) -> None:
    step, given = make()
    eager = of_a_step(step, given)
    step, given = make()
    compiled = foretrace.compile(step, fullgraph=True)
    ours = of_a_step(compiled, given)
    assert len(compiled.recaptures) <= 1
    assert ours <= eager, f"{ours} bytes, and eager {eager}: {ours / eager:.3f}"


def test_what_is_measured() -> None:
    """Two tensors at once, and then one."""
    given = torch.ones(1000)

    def call() -> Tensor:
        one = given.neg()
        two = one.neg()
        del one
        return two.neg()

    assert peak(call) == 2 * 4000


@pytest.mark.slow
@pytest.mark.parametrize("make", [clipped_with_momentum, averaged], ids=lambda make: make.__name__)
def test_peak_with_inductor_is_not_above_eagers(make: Callable[[], Made]) -> None:
    """Its graph writes the updates itself: where eager's are, and autograd is told."""
    torch.manual_seed(0)
    step, given = make()
    eager = of_a_step(step, given)
    torch.manual_seed(0)
    step, given = make()
    compiled = foretrace.compile(step, backend="inductor", fullgraph=True)
    assert of_a_step(compiled, given) <= eager


@pytest.mark.slow
def test_what_inductor_writes_is_the_update() -> None:
    def made() -> tuple[nn.Sequential, Callable[..., Any]]:
        torch.manual_seed(0)
        model = layers(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, trained(model, optimizer)[0]

    eager, step = made()
    ours, other = made()
    compiled = foretrace.compile(other, backend="inductor", fullgraph=True)
    places = [p.data_ptr() for p in ours.parameters()]
    for batch in batches():
        step(*batch)
        versions = [p._version for p in ours.parameters()]
        compiled(*batch)
        assert all(p._version > v for p, v in zip(ours.parameters(), versions, strict=True))
    assert places == [p.data_ptr() for p in ours.parameters()]
    torch.testing.assert_close(ours.state_dict(), eager.state_dict())

"""A step that raises, or gives up at a guard, has written nothing; one that runs tells autograd.

`foretrace.compile` then runs the program as Python, and leaves what eager leaves.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.steps import Loop, _look

D, ROWS, WORDS = 4, 6, 5
Made = tuple[Callable[..., Any], dict[str, Any]]


def micro_batches() -> Made:
    model = nn.Sequential(nn.Embedding(WORDS, D), nn.Flatten(), nn.Linear(2 * D, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step(ids: Tensor) -> None:
        for part in ids.chunk(3):
            model(part).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step, {"model": model, "optimizer": optimizer}


def counts_first() -> Made:
    model = nn.Sequential(nn.Embedding(WORDS, D), nn.Flatten(), nn.BatchNorm1d(2 * D))
    seen = torch.zeros(D)

    def step(ids: Tensor) -> Tensor:
        with torch.no_grad():
            model[0].weight.mul_(0.9)
            seen.add_(model[0].weight[0])
        loss = model(ids).square().sum()
        (grad,) = torch.autograd.grad(loss, model[0].weight)
        with torch.no_grad():
            model[0].weight.sub_(grad, alpha=0.1)
        return loss.detach()

    return step, {"model": model, "seen": seen}


def raises_in_its_last_write() -> Made:
    w, table = nn.Parameter(torch.randn(D, 1)), torch.zeros(WORDS)

    def step(ids: Tensor) -> None:
        loss = (table[:D] @ w).square().sum() + w.square().sum()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(grad, alpha=0.1)
            table.index_add_(0, ids.flatten(), torch.ones(ids.numel()))

    return step, {"w": w, "table": table}


def checks_after_the_update() -> Made:
    w = nn.Parameter(torch.randn(D, 1))

    def step(ids: Tensor) -> None:
        loss = w.square().sum()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(grad, alpha=0.1)
        torch._assert_async((ids < WORDS).all())

    return step, {"w": w}


RAISING = [micro_batches, counts_first, raises_in_its_last_write, checks_after_the_update]


@pytest.mark.parametrize("make", RAISING, ids=lambda make: make.__name__)
@pytest.mark.parametrize("python", [True, False])
def test_an_error_halfway(make: Callable[[], Made], *, python: bool) -> None:
    torch.manual_seed(0)
    step, held = make()
    loop = Loop(step, lambda _: (), **held)
    right, wrong = torch.randint(WORDS, (3, ROWS, 2)), torch.randint(WORDS, (ROWS, 2))
    wrong[-1] = WORDS
    torch.manual_seed(0)
    eager_step, eager_held = make()
    eager = Loop(eager_step, lambda _: (), **eager_held)
    compiled = foretrace.compile(step, fullgraph=True)
    for ids in right:
        compiled(ids)
        eager_step(ids)
    if not python:
        compiled = foretrace.capture(step, (right[0],), warm=False).compile()
    before, captures = _look(loop, None), len(compiled.recaptures)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(wrong)
    with pytest.raises((IndexError, RuntimeError)):
        eager_step(wrong)
    assert len(compiled.recaptures) == captures
    expected = _look(eager, None) if python else before
    assert not list(differences(expected, _look(loop, None), "after it"))


def test_a_guard_broken_after_the_update() -> None:
    """What gives up has written nothing: the capture that answers begins where eager would."""
    w = nn.Parameter(torch.ones(D))

    def step(x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((w * x).sum(), w)
        with torch.no_grad():
            w.sub_(grad)
            if w.sum() > 0:
                return w.sum()
        return w.sum() * 100

    compiled, given = foretrace.compile(step, fullgraph=True), torch.full((D,), 0.25)
    found = [compiled(given).item() for _ in range(6)]
    assert found == [3.0, 2.0, 1.0, 0.0, -100.0, -200.0]
    assert w.tolist() == [-0.5] * D


def test_a_backward_from_before_is_refused_as_eagers_is() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @foretrace.compile(fullgraph=True)
    def step(x: Tensor) -> None:
        F.mse_loss(model(x), torch.zeros(ROWS, 1)).backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.randn(ROWS, D, requires_grad=True)
    step(x.detach())
    loss = model(x).sum()
    step(x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_arguments_that_share_memory_with_what_is_written() -> None:
    """Two that were apart in the capture and are one memory now are not answered by it."""

    @foretrace.compile(fullgraph=True)
    def step(w: Tensor, x: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad((w * x).square().sum(), w)
        with torch.no_grad():
            w.sub_(grad)
        return x * 2

    memory = torch.ones(2 * D)
    step(torch.ones(D, requires_grad=True), torch.ones(D))
    w = memory[:D].requires_grad_()
    with pytest.raises(foretrace.Refusal, match="shares"):
        step(w, memory[1 : D + 1])
    assert memory.tolist() == [1.0] * (2 * D)

"""Each program with a hole, trained for five steps through its pieces, as eager to the last bit."""

import copy
import importlib.util
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.runtime.graph_breaks.coverage import share
from tests.pieces import more_programs, programs
from tests.pieces.programs import HOLES, Hole, batch
from tests.support.bits import differences
from tests.support.turns import one_in

STEPS = 5
BY_NAME = [
    pytest.param(hole, id=name)
    for file in (programs, more_programs)
    for name, hole in HOLES.items()
    if hole.make.__module__ == file.__name__
]
Step = Callable[[Tensor, Tensor], Tensor]


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in module.named_parameters()}


def train(module: nn.Module, step: Step, optimizer: Any) -> list[Any]:
    """All that is left of each step: what it gives, parameters, buffers, random states, notes."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    found = []
    for number in range(STEPS):
        loss = step(*batch(number))
        left = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        kept = copy.deepcopy([*optimizer.state_dict()["state"].values()])
        drawn = [torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()]
        notes = [copy.deepcopy(vars(module).get(name)) for name in ("seen", "counts")]
        found.append([loss.detach(), gradients(module), left, kept, *drawn, *notes])
    return found


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01)


def by_model(module: nn.Module, call: Any) -> list[Any]:
    """Only the loss is of the callable."""
    optimizer = optimizer_of(module)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = call(x, y)
        loss.backward()
        optimizer.step()
        return loss

    return train(module, step, optimizer)


def step_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """A whole step in one function."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda *args, **kwargs: None)
    if importlib.util.find_spec("scipy"):
        importlib.import_module("scipy.optimize")


def both(hole: Hole, request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """Two of it."""
    if "scipy" in request.node.name and not importlib.util.find_spec("scipy"):
        pytest.skip("scipy is not installed")
    torch.manual_seed(0)
    made = hole.make()
    return made, copy.deepcopy(made)


def told(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in caught if "captured" in str(each.message)]


@pytest.mark.parametrize("hole", one_in(4, BY_NAME))
def test_trained(hole: Hole, request: pytest.FixtureRequest, capsys: Any) -> None:
    eager, ours = both(hole, request)
    expected = by_model(eager, eager)
    said = capsys.readouterr().out
    compiled = foretrace.compile(ours)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = by_model(ours, compiled)
    for step, pair in enumerate(zip(expected, found, strict=True)):
        assert not list(differences(*pair, f"step {step}"))
    assert capsys.readouterr().out == said
    assert compiled.breaks
    (once,) = told(caught)
    assert "is not captured whole" in once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured, total = share(compiled, batch(STEPS))
    assert captured / total >= hole.share, (captured, total, *map(str, compiled.breaks))


@pytest.mark.parametrize("hole", one_in(4, BY_NAME, 1))
def test_whole_steps(
    hole: Hole, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, backward and optimizer in one callable; it is tried so often, and no more."""
    from foretrace.session.run import setup  # noqa: PLC0415

    eager, ours = both(hole, request)
    optimizers = optimizer_of(eager), optimizer_of(ours)
    expected = train(eager, step_of(eager, optimizers[0]), optimizers[0])
    step, tried, record = step_of(ours, optimizers[1]), list[Any](), setup.record
    monkeypatch.setattr(setup, "record", lambda fn, *rest: (tried.append(fn), record(fn, *rest))[1])
    compiled = foretrace.compile(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = train(ours, compiled, optimizers[1])
    for number, pair in enumerate(zip(expected, found, strict=True)):
        assert not list(differences(*pair, f"step {number}"))
    assert len(told(caught)) == 1
    assert tried.count(step) <= 3  # one that makes the state of the optimizer among them

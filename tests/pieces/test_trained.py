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
from torch import nn

import foretrace
from foretrace.pieces.share import share
from tests.pieces.programs import HOLES, Hole, batch
from tests.support.bits import differences

STEPS = 5
BY_NAME = [pytest.param(hole, id=name) for name, hole in HOLES.items()]


def train(module: nn.Module, call: Callable[..., Any]) -> list[Any]:
    """All that is left of each step: loss, gradients, parameters, buffers, random states."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = call(*batch(step))
        loss.backward()
        gradients = {n: None if p.grad is None else p.grad.clone()
                     for n, p in module.named_parameters()}  # fmt: skip
        optimizer.step()
        state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        drawn: list[Any] = [
            torch.get_rng_state(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
        ]
        seen.append([loss.detach(), gradients, state, *drawn])
    return seen


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", lambda *args, **kwargs: None)
    if importlib.util.find_spec("scipy"):
        importlib.import_module("scipy.optimize")


@pytest.mark.parametrize("hole", BY_NAME)
def test_trained(hole: Hole, request: pytest.FixtureRequest, capsys: Any) -> None:
    if "scipy" in request.node.name and not importlib.util.find_spec("scipy"):
        pytest.skip("scipy is not installed")
    torch.manual_seed(0)
    eager = hole.make()
    ours = copy.deepcopy(eager)
    expected = train(eager, eager)
    said = capsys.readouterr().out
    compiled = foretrace.compile(ours)
    with pytest.warns(UserWarning, match="is not captured whole"):
        found = train(ours, compiled)
    for step, pair in enumerate(zip(expected, found, strict=True)):
        assert not list(differences(*pair, f"step {step}"))
    assert capsys.readouterr().out == said
    assert compiled.breaks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        captured, total = share(compiled, batch(STEPS))
    assert captured / total >= hole.share, (captured, total, *map(str, compiled.breaks))

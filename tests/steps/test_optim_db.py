"""Every optimizer of torch's optim_db with all its sample arguments, in a step, beside eager."""

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs as all_inputs,
    optim_db,
)

from tests.steps.data import D, K, labelled, mlp
from tests.steps.registry import Loop
from tests.support.steps import same_steps
from tests.support.turns import one_in

BATCHES = 5
FEW = 3
"""Evaluations of a closure in a step: each is unrolled, and its lists grow from call to call"""

pytestmark = pytest.mark.filterwarnings("ignore:.* was captured again 8 times")


def sparse_loop(kind: Any, options: dict[str, Any], *, closure: bool) -> Loop:
    """A step of an optimizer that takes sparse gradients alone."""
    model = nn.Embedding(K, D, sparse=True)
    optimizer = kind(model.parameters(), **copy.deepcopy(options))

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(y), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


def loop(kind: Any, options: dict[str, Any], *, closure: bool) -> Loop:
    """The usual step; Muon takes matrices alone."""
    model = mlp()
    if kind.__name__ == "Muon":
        model = nn.Sequential(nn.Linear(D, 10, bias=False), nn.Tanh(), nn.Linear(10, K, bias=False))
    optimizer = kind(model.parameters(), **copy.deepcopy(options))

    def train(x: Tensor, y: Tensor) -> Tensor:
        def loss_of() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        if closure:
            return optimizer.step(loss_of).detach()
        loss = loss_of()
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


def cases() -> Iterator[Any]:
    """One for each setting, with the ways to compute that the CPU has."""
    for info in optim_db:
        given = all_inputs("cpu", torch.float32, info, skip=("differentiable",))
        for place, each in enumerate(given):
            closure = info.step_requires_closure
            options = {"max_iter": FEW, **each.kwargs} if closure else each.kwargs
            made = sparse_loop if info.only_supports_sparse_grads else loop
            build = partial(made, info.optim_cls, options, closure=closure)
            yield pytest.param(build, id=f"{info.optim_cls.__name__}-{place}-{each.desc}")


@pytest.mark.parametrize("build", one_in(25, list(cases())))
def test_a_step_of_it(build: Any) -> None:
    ran = same_steps(build, batches=BATCHES, fullgraph=True)
    assert ran.captures

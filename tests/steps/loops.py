"""The scaffold of a step: what builds its model and optimizer, the usual update, usual loops."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.steps.data import labelled, mlp, one_number, targets
from tests.steps.registry import add
from tests.support.steps import Loop

Batch = Callable[[int], tuple[Any, ...]]


def backward(cleared: nn.Module | Optimizer, loss: Tensor) -> Tensor:
    """Clear the gradients of a module or of an optimizer and compute those of `loss`."""
    cleared.zero_grad()
    loss.backward()
    return loss


def updated(optimizer: Optimizer, loss: Tensor) -> Tensor:
    """Take one step down `loss`, which is returned without its history."""
    backward(optimizer, loss)
    optimizer.step()
    return loss.detach()


def learner(
    optimizer: Callable[..., Optimizer],
    *,
    model: Callable[[], nn.Module] = mlp,
    batch: Batch = labelled,
    first_calls: int = 1,
    breaks: tuple[str, ...] = (),
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `train(model, optimizer, *batch)` with a model and an optimizer made for it."""
    shared = [name for name, value in settings.items() if isinstance(value, Tensor)]
    assert not shared, f"all builds would share {shared}: make them in a lambda for optimizer="

    def put(train: Callable[..., Any]) -> Callable[..., Any]:
        def build() -> Loop:
            net = model()
            of_net = optimizer(net.parameters(), **settings)
            return Loop(_applied(train, net, of_net), batch, model=net, optimizer=of_net)

        add(train.__name__, train.__module__, build, first_calls=first_calls, breaks=breaks)
        return train

    return put


def regressor(
    optimizer: Callable[..., Optimizer], **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A `learner` of one number for each row."""
    return learner(optimizer, model=one_number, batch=targets, **settings)


def by_hand(
    *, model: Callable[[], nn.Module] = mlp, batch: Batch = labelled, first_calls: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register `train(model, *batch)`, which updates the model without an optimizer."""

    def put(train: Callable[..., Any]) -> Callable[..., Any]:
        def build() -> Loop:
            net = model()
            return Loop(_applied(train, net), batch, model=net)

        add(train.__name__, train.__module__, build, first_calls=first_calls)
        return train

    return put


def _applied(train: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    def step_of(*batch: Any) -> Any:
        return train(*first, *batch)

    return step_of


def classifies(
    model: nn.Module, optimizer: Optimizer, batch: Batch = labelled, **state: Any
) -> Loop:
    """The usual loop of a classifier: only its model, optimizer, data and state vary."""

    def train(x: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.cross_entropy(model(x), y))

    return Loop(train, batch, model=model, optimizer=optimizer, **state)


def fits(model: nn.Module, optimizer: Optimizer, batch: Batch = targets, **state: Any) -> Loop:
    """The usual loop of a regression: only its model, optimizer, data and state vary."""

    def train(x: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.mse_loss(model(x), y))

    return Loop(train, batch, model=model, optimizer=optimizer, **state)


def descends(
    model: nn.Module, rate: Callable[[Tensor], float], batch: Batch = targets, **state: Any
) -> Loop:
    """Descent by hand, with a rate for each parameter."""

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=rate(p))
        return loss

    return Loop(train, batch, model=model, **state)

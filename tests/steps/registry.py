"""How a training step is named, and what is expected of its capture."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.support.steps import Build, Loop

Batch = Callable[[int], tuple[Any, ...]]

STEPS: "dict[str, Step]" = {}
D, K, ROWS = 6, 3, 8  # features, classes, rows of a batch


@dataclass(frozen=True)
class Step:
    """A named training loop."""

    name: str
    section: str
    build: Build
    first_calls: int = 1  # at most: calls that run as Python, as they make what later ones find
    breaks: tuple[str, ...] = ()  # where no single graph holds it: kinds of the refusals


def step(
    *,
    first_calls: int = 1,
    breaks: tuple[str, ...] = (),
) -> Callable[[Build], Build]:
    """Register what makes a loop; `add` for one of a family."""

    def put(build: Build) -> Build:
        add(build.__name__, build.__module__, build, first_calls=first_calls, breaks=breaks)
        return build

    return put


def add(name: str, module: str, build: Build, **expected: object) -> None:
    """One more loop."""
    assert name not in STEPS, f"two steps are called {name}"
    STEPS[name] = Step(name, module.rpartition(".")[2], build, **expected)  # type: ignore[arg-type]


# ------------------------------------------------------------------------- what most of them take


def drawn(index: int) -> torch.Generator:
    """The numbers of one batch."""
    return torch.Generator().manual_seed(100 + index)


def labelled(index: int) -> tuple[Tensor, Tensor]:
    """Features and a class for each row."""
    g = drawn(index)
    return torch.randn(ROWS, D, generator=g), torch.randint(K, (ROWS,), generator=g)


def targets(index: int) -> tuple[Tensor, Tensor]:
    """Features and a number for each row."""
    g = drawn(index)
    return torch.randn(ROWS, D, generator=g), torch.randn(ROWS, 1, generator=g)


def features(index: int) -> tuple[Tensor]:
    """Features alone."""
    return (torch.randn(ROWS, D, generator=drawn(index)),)


def mlp(wide: int = 10, out: int = K, given: int = D) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(given, wide), nn.Tanh(), nn.Linear(wide, out))


# ----------------------------------------------------------------------------- what most of them do


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


__all__ = [
    "STEPS", "Loop", "Step", "add", "backward", "classifies", "descends", "drawn", "features",
    "fits", "labelled", "mlp", "step", "targets", "updated",
]  # fmt: skip

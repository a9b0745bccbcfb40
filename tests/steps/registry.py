"""How a training step is named, and what is expected of its capture."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.support.steps import Build, Loop

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


__all__ = [
    "STEPS", "Loop", "Step", "add", "drawn", "features", "labelled", "mlp", "step", "targets",
]  # fmt: skip

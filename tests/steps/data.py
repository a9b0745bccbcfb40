"""Batches and models that most steps take."""

import torch
from torch import Tensor, nn

D, K, ROWS = 6, 3, 8  # features, classes, rows of a batch


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


def one_number() -> nn.Sequential:
    """Two layers that give one number for each row."""
    return mlp(out=1)

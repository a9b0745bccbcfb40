"""A spline on an interval: `searchsorted` finds the piece, masks assign inside and outside.

How many numbers lie inside is up to the data. `y[mask] = ...` writes only there, and its gradient
is read only there; one capture holds for all, where none or every number lies inside, too.
"""

import torch
from torch import Tensor, nn

KNOTS, COUNT = 5, 12


class Spline(nn.Module):
    """A line from knot to knot on the unit interval, and the identity outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(0, 1, KNOTS))
        self.values = nn.Parameter(torch.randn(KNOTS))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inside, out = (x >= 0) & (x <= 1), torch.zeros_like(x)
        at = x[inside]
        i = torch.searchsorted(self.knots, at).clamp(1, KNOTS - 1)
        part = (at - self.knots[i - 1]) / (self.knots[i] - self.knots[i - 1])
        out[inside] = self.values[i - 1] * (1 - part) + self.values[i] * part
        out[~inside] = x[~inside]
        return out.sin().mean(), out


def program() -> tuple[Spline, tuple[Tensor]]:
    """Return the spline and numbers on both sides of its ends."""
    torch.manual_seed(0)
    return Spline(), (torch.randn(COUNT, requires_grad=True),)


def others() -> list[tuple[Tensor]]:
    """Return other numbers, then all inside, then none."""
    torch.manual_seed(1)
    drawn = torch.randn(COUNT), torch.rand(COUNT), torch.rand(COUNT) + 2
    return [(numbers.requires_grad_(),) for numbers in drawn]

"""A buffer is bound to a new tensor, and the old one is returned: an exported program copies."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.ones(2, 3))
        self.register_buffer("seen", torch.zeros(3))
        self.w = nn.Parameter(torch.randn(3))

    def forward(self, x, flag=True, number=2):
        old, row, seen = self.state, self.state[0], self.seen
        seen.add_(1)
        self.state = self.state * 2 + x.detach().sum()
        self.seen = self.seen * row
        return (x * self.w).sum(), old, old * 1, row, old.t(), self.state, seen, self.seen[1:]


def make():
    return Net()


def inputs(call):
    return (torch.randn(2, 3),), {}


LOSS, DYNAMIC = 0, False

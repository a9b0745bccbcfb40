"""A joint cut writes a history to a buffer; the next call is refused, and eager meets that."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = nn.Parameter(torch.randn((4, 4)))
        self.register_buffer("b1", torch.ones((4, 4)))

    def forward(self, x0, flag=False, number=2):
        self.b1.add_(self.w0)
        return self.b1.float().sum()


def make():
    return Net()


def inputs(call):
    x0 = torch.randn((2, 3, 4))
    return ((x0,), {})


LOSS, DYNAMIC = 0, True

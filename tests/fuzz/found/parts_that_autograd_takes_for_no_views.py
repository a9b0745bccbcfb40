"""A part of a parameter that autograd takes for no view, written in place: it saves a copy."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, flag=False, number=2):
        first, second = self.w.unsafe_split(2)
        first.sin_()
        turned = second.unsafe_chunk(2, 1)[0].t()
        turned.mul_(x.sum())
        return (first.float().sum() * x.sum()) + turned.exp().sum()


def make():
    return Net()


def inputs(call):
    return (torch.randn(5 if call == 2 else 3),), {}


LOSS, DYNAMIC = 0, False

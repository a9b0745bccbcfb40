"""Eager takes out what was saved where no gradient arrives, too: it refuses this backward."""

import torch
from torch import nn


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x, flag=True, number=2):
        y = (self.w * x).relu()
        kept = y.mean()
        y.mul_(2)
        return (Nothing.apply(nn.functional.gelu(y)) + self.w).sum() + kept


def make():
    return Net()


def inputs(call):
    return (torch.randn(3, 4),), {}


LOSS, DYNAMIC = 0, False

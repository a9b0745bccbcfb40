"""A parameter is bound to another name, too: the program counts its parameters."""

import contextlib

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.extra = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x, flag=False, number=2):
        return self.extra * len(list(self.parameters()))


def make():
    return Net()


def inputs(call):
    return ((0,), {})


LOSS = None
DYNAMIC = False
CALLS = 3


def change(call, fn, names, cells):
    if call:
        fn.linear.weight = fn.extra


def around(call):
    return contextlib.nullcontext()

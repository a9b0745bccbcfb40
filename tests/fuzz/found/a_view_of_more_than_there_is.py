"""A view sees more than there is, and nobody reads it: eager raises."""

import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x, flag=False, number=2):
        half = x.hsplit(2)[0].sigmoid()
        half.as_strided((3,), (1,), 1)
        return x * 2


def make():
    return Net()


def inputs(call):
    return ((torch.randn((4,)),), {"flag": call != 3})


LOSS = None
DYNAMIC = False

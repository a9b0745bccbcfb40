"""A view that overlaps itself at another size alone is written: captured with open sizes."""

import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x, flag=False, number=2):
        windows = x.unfold(-1, 2, 1)
        windows.add_(windows)
        return windows


def make():
    return Net()


def inputs(call):
    return ((torch.randn((5 if call == 2 else 2, 4)).t(),), {})


LOSS = 0
DYNAMIC = True

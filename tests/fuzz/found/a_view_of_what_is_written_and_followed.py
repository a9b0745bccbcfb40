"""A view of a written argument is returned: its gradient lies as the call that took it has it."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn((4,)))

    def forward(self, x, flag=False, number=2):
        x.add_(self.w)
        return x.permute(1, 0, 2), x[:, 1:].transpose(0, 2)


def make():
    return Net()


def inputs(call):
    return ((torch.randn((2, 7 + call, 4)),), {})


LOSS = None
DYNAMIC = True

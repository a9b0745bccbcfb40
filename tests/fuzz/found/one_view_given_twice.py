"""One tensor is two arguments, and a view of what does not require grad: so are views of it."""

import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x, y, flag=False, number=2):
        with torch.no_grad():
            part = y[0, 1]
        return part.abs(), x * y


def make():
    return Net()


def inputs(call):
    x = torch.randn((5 if call == 2 else 2, 4))[..., ::2].requires_grad_()
    return ((x, x), {})


LOSS = None
DYNAMIC = False

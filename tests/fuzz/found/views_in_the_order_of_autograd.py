"""Gradients of a written tensor and of views of it are added up in the order of autograd's nodes.

That of the view that is written is made with the write, those of other views when they are used.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5))

    def forward(self, x, flag=True, number=2):
        y = x * self.w
        v, u = y[:, 1:], y[:, :2]
        z = v.sigmoid()
        v.add_(1)
        kept = y * 3 + v.mean(), y[:, :4] * z.detach()
        v.mul_(2)
        return *kept, u, v, y, y / 7 + u[:1, :1]


def make():
    return Net()


def inputs(call):
    return (torch.randn(6 + call, 5),), {}


LOSS, DYNAMIC = None, True

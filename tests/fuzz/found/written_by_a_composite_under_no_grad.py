"""A view of a parameter is written under no_grad by an operator with a body, and viewed again."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, flag=False, number=2):
        turned = self.w.mT
        with torch.no_grad():
            dropped = F.dropout(turned, 0.3, True, True)
        row = self.w[0]
        with torch.no_grad():
            torch.square_(row)
        return F.smooth_l1_loss(dropped, turned * x.sum()) + row.sum()


def make():
    return Net()


def inputs(call):
    return (torch.randn(5 if call == 2 else 3),), {}


LOSS, DYNAMIC = 0, False

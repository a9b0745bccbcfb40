"""A shape is changed in place, and views that were taken before are returned.

Their new history is of the tensor as it is shaped then: gradients are summed in that order.
"""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = nn.Parameter(torch.randn((4, 4)))

    def forward(self, x, flag=False, number=2):
        squeezed, turned, both = self.w0 * 3, x * self.w0, self.w0 + x
        views = squeezed[:-1], turned[1:], both[:, 1], both.view(2, 8)
        squeezed.squeeze_()
        turned.t_()
        both.t_()
        later = both[1:]
        both.unsqueeze_(0)
        views[2].add_(1)
        now = [y for each in (squeezed, turned, both) for y in (each, each.select(1, 0))]
        return (*views, later, *now)


def make():
    return Net()


def inputs(call):
    return ((torch.randn((4, 4)),), {"flag": call != 3})


LOSS = None
DYNAMIC = False

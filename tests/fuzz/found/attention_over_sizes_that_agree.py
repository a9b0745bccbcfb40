"""Attention of tensors with open sizes of their own: its kernel does not look whether they agree.

It was run with other numbers for each, and wrote behind the end of memory.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def forward(self, x, y, flag=False, number=2):
        found = F.scaled_dot_product_attention(x[None], x.floor()[None], y[None], is_causal=True)
        return found.sum(), found


def make():
    return Net()


def inputs(call):
    n = 5 if call == 2 else 4
    return ((torch.randn(n, 4).expand(2, n, 4).requires_grad_(), torch.randn(2, n, 4)), {})


LOSS = 0
DYNAMIC = True

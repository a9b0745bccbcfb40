"""Batch norm of a transposed input lies in order, with open sizes too: its reshape is a view."""

import torch
import torch.nn.functional as F


def make():
    def program(x, y, flag=False, number=2):
        x = F.batch_norm(x, None, None, training=True)
        y = F.batch_norm(y, None, None, training=True)
        x.reshape(-1)[0] = -1.5
        y.reshape(-1)[0] = -1.5
        return x, y

    return program


def inputs(call):
    n = 5 if call == 2 else 4
    return (torch.randn(n, 4).t(), torch.randn(2, n, 3, 6).transpose(1, 2)), {}


LOSS, DYNAMIC = None, True

"""Under no_grad, a backend: all that has a history is a view of a tensor from outside."""

import torch


def make():
    w0 = torch.randn(4, requires_grad=True)

    def program(x, flag=False, number=2):
        with torch.enable_grad():
            y = w0.reshape(-1, 4)
        y.detach()[0].add_(1)
        return y

    return program


def inputs(call):
    return ((torch.randn(4),), {})


LOSS = None
DYNAMIC = False

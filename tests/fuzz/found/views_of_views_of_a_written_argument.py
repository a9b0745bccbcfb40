"""Views of a view of a written argument: their gradients meet where that view was taken."""

import torch


def make():
    def program(x, flag=True, number=2):
        x.unsqueeze(0).mul_(2)
        a = x.reshape(-1, x.shape[0])
        b = x[1:]
        return a.view(-1), b[..., 1:], b.t(), x.view(-1), a.t(), a

    return program


def inputs(call):
    n = 5 if call == 2 else 3
    x = torch.randn(n, 4).requires_grad_()
    return (x * 1,), {}


LOSS, DYNAMIC = None, False

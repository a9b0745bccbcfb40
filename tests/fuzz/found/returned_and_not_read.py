"""A tensor of the closure that is returned and that no op reads: it is that tensor."""

import torch


def make():
    kept = torch.randn(1, 4).requires_grad_()

    def program(x, flag=False, number=2):
        return kept, x * 2

    return program


def inputs(call):
    return (torch.randn(5 if call == 2 else 3, 4),), {}


LOSS, DYNAMIC = None, False

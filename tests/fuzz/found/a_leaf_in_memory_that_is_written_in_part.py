"""A leaf in memory of its own is one after a write to a part of it: it had a history."""

import torch


def make():
    def program(x, flag=True, number=2):
        leaf = torch.cdist(x, x).detach().requires_grad_()
        with torch.no_grad():
            leaf.chunk(2)[0].mul_(3)
        return leaf, leaf * 2

    return program


def inputs(call):
    return (torch.randn(5 if call == 2 else 4, 4).requires_grad_(),), {}


LOSS, DYNAMIC = None, False

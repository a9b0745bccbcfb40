"""Numbers drawn over memory without elements, in whose strides no order can be read."""

import torch


def make():
    def program(x, flag=True, number=2):
        y = x.mT[None] * 0
        return y.bernoulli_(), (x.mT[None] + 1).bernoulli_(0.5).stride()

    return program


def inputs(call):
    return (torch.zeros(0, 5 if call == 2 else 4),), {}


LOSS, DYNAMIC = None, False

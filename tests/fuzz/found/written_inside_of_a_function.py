"""A Function writes to what another one gave, and does not say so: the result has its history."""

import torch


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g


def make():
    def program(x, flag=False, number=2):
        made = Doubled.apply(x)
        Written.apply(made)
        return made.sum()

    return program


def inputs(call):
    return ((torch.randn((2, 3)).requires_grad_(True),), {})


LOSS = 0
DYNAMIC = False

"""A Function gives a view of its argument, which is then written by way of `.data`."""

import torch


class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * 3


def make():
    def program(x, y, flag=False, number=2):
        inner, outer = y * 2, Viewed.apply(x)
        seen = Viewed.apply(inner)
        x.data.mul_(2)
        inner.data.mul_(2)
        return outer, seen, seen * 2

    return program


def inputs(call):
    x, y = torch.randn((3, 4)), torch.randn((3, 4))
    return ((x.requires_grad_(), y.requires_grad_()), {})


LOSS = None
DYNAMIC = False

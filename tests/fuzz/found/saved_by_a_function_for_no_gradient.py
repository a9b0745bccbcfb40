"""A Function saves what needs no gradient, and it is written: eager's backward takes it out."""

import torch


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        return x + y, x - y

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return a * x, a - b


class Careless(Scaled):
    @staticmethod
    def backward(ctx, a, b):
        return a, a - b


def make():
    w0, scale = torch.randn(4, requires_grad=True), torch.randn(4)

    def program(x, flag=False, number=2):
        y, z = (Scaled if flag else Careless).apply(scale, w0)
        scale.mul_(2)
        return (y * z * x).sum()

    return program


def inputs(call):
    return ((torch.randn(4),), {"flag": call != 1})


LOSS = 0
DYNAMIC = False

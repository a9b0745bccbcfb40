"""`t_()` counts as a write for those that share the version counter, which `.data` does not."""

import torch


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x


def make():
    w = torch.randn((6,)).requires_grad_(True)

    def program(x, flag=False, number=2):
        made = w * x
        result = Product.apply(made.data, w) + made.data * w
        made.t_()
        return result.sum()

    return program


def inputs(call):
    return ((torch.randn(()),), {})


LOSS = 0
DYNAMIC = False

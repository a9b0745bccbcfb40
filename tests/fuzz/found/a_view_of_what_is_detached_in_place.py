"""A view is used after a write and `detach_()` of its base: eager's history of it leads nowhere."""

import torch


def make():
    w = torch.randn((3, 4)).requires_grad_(True)

    def program(x, flag=False, number=2):
        made = w * 2
        view, other = made[0], made[1]
        seen = other * 2
        made.mul_(x)
        made.detach_()
        return (view, made) if flag else (seen, made, made[1])

    return program


def inputs(call):
    return ((torch.rand(()), call != 2), {})


LOSS = None
DYNAMIC = False

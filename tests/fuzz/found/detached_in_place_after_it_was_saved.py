"""An op has saved what is detached in place afterwards: eager refuses the backward."""

import torch


def make():
    w = torch.randn((1, 4)).requires_grad_(True)

    def program(x, flag=False, number=2):
        made = w.exp() * x
        result = made.clamp(-1, 1) if flag else made[0] * 2
        made.detach_()
        if not flag:
            made.mul_(2)
        return result.sum()

    return program


def inputs(call):
    return ((torch.ones(1), call != 1), {})


LOSS = 0
DYNAMIC = False

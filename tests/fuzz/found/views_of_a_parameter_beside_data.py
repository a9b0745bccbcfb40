"""Views of a parameter written by way of `.data`: their gradients lie as they were taken."""

import torch


def make():
    w = torch.randn((4, 4)).requires_grad_(True)

    def program(x, flag=False, number=2):
        wide = w.unsqueeze(-1).expand(*w.shape, 3)
        turned = wide.mT
        w.data[0] = 0
        return wide, turned, turned[1]

    return program


def inputs(call):
    return ((torch.ones(1),), {})


LOSS = None
DYNAMIC = False

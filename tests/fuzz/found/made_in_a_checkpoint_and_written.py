"""What a checkpoint makes again in the backward is written over, and an op outside has saved it."""

import torch
from torch.utils.checkpoint import checkpoint


def make():
    w = torch.randn((4,)).requires_grad_(True)

    def program(x, flag=False, number=2):
        made = checkpoint(lambda q: w.exp(), x, use_reentrant=False)
        seen = torch.inner(made, w)
        made.data[0] = 2
        return made.sum() + seen if flag else made.sum()

    return program


def inputs(call):
    return ((torch.randn(()), call == 2), {})


LOSS = 0
DYNAMIC = False

"""An output that is conjugated later: a tangent of nothing is not."""

import torch


def make():
    def program(x, flag=False, number=2):
        return torch.complex(x.float(), x.float()).conj()

    return program


def inputs(call):
    return ((torch.randn((0, 4), dtype=torch.float64).requires_grad_(),), {})


LOSS = None
DYNAMIC = False

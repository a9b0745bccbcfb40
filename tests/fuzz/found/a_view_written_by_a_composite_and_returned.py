"""A view of a leaf that an operator with a body writes under no_grad is no leaf: it is returned."""

import torch
import torch.nn.functional as F


def make():
    def program(x, flag=False, number=2):
        same = x.unsqueeze(0).squeeze(0)
        with torch.inference_mode():
            F.selu_(same)
        return same.float().sum(), same

    return program


def inputs(call):
    return (torch.randn(5 if call == 2 else 3, 4, requires_grad=True),), {}


LOSS, DYNAMIC = 0, False

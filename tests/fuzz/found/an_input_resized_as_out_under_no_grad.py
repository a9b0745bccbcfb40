"""Under no_grad an input with a history is given as `out=`, and eager resizes it."""

import torch


def make():
    w2 = torch.randn((6,))

    def program(x0, flag=False, number=2):
        with torch.no_grad():
            torch.add(w2, w2, out=x0)

    return program


def inputs(call):
    x0 = torch.randn((4, 4)).requires_grad_() * 1
    return ((x0,), {})


LOSS, DYNAMIC = None, False

"""Memory that is written as elements of another size, which torch reads where they lie in order."""

import torch


def make():
    def program(nothing, x, w, flag=True, number=2):
        nothing.view(torch.int32).add_(1)
        x.view(torch.int32).copy_(w.t())
        more = nothing.view(torch.int32) + 1
        return more.stride(), more, x.view(torch.int32).sum()

    return program


def inputs(call):
    n = 5 if call == 2 else 3
    nothing = torch.zeros(0, 4, dtype=torch.uint8)
    x = torch.zeros(n, 8, dtype=torch.uint8)
    return (nothing, x, torch.arange(2 * n, dtype=torch.int32).view(2, n)), {}


LOSS, DYNAMIC = None, False

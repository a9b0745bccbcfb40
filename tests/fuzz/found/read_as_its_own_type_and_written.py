"""A view that reads memory as the type that it has: `view(dtype)` has the places of its base."""

import torch


def make():
    def program(x, part, y, flag=True, number=2):
        part.view(torch.int32).add_(1)
        z = y * 1
        z.view(torch.float32).as_strided((2, 2), (2, 1), 1).mul_(y[0, 0])
        return z

    return program


def inputs(call):
    n = 5 if call == 2 else 3
    x = torch.randint(0, 3, (2, n, 4), dtype=torch.int32)
    return (x, x.view(-1), torch.randn(n, 4, requires_grad=True)), {}


LOSS = None
DYNAMIC = False

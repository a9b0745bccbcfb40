"""The result of einsum is a view: what was computed of it and what writes to it meet below it."""

import torch


def make():

    def program(x0, flag=False, number=2):
        v1 = torch.einsum("...i,...i->...", x0 * 1, x0)
        v2 = v1 * 2
        v1.lerp_(v1, 0.3)
        v3 = torch.einsum("bij,bjk->bik", x0, x0)
        v3 *= 2
        v4, v5 = v3 * 1.7, v3 * -0.37
        with torch.no_grad():
            v3[0].mul_(3)
        v3.lerp_(v3, 0.3)
        v6 = torch.einsum("bij,bjk->bik", x0, x0)
        with torch.no_grad():
            v6.mul_(3)
        v7, v8 = v6 * 1.7, v6 * -0.37
        v6.lerp_(v6, 0.3)
        v9 = torch.einsum("bij,bjk->bik", x0, x0)
        v9.mul_(3)
        v10 = v9[1]
        v10.mul_(2)
        v11, v12 = v9 * 1.7, v10 * -0.37
        v9.lerp_(v9, 0.3)
        v10.lerp_(v10, 0.3)
        return (v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12)

    return program


def inputs(call):
    n = 4 + call
    x0 = torch.randn((3, n, n)).half().requires_grad_(True)
    return ((x0,), {})


LOSS = None
DYNAMIC = True

"""Views that put off a conjugation or negation: composites see them, and writes go through them."""

import torch


def make():
    def program(x, y, v, flag=True, number=2):
        z = x * 1
        z.conj().imag.add_(v)
        torch.nn.functional.dropout(z.real, 0.5, inplace=True)
        part = (y * 1)[1:]
        part.mH.mul_(2j)
        part.conj().imag[0].normal_()
        grid = torch.meshgrid(x.conj().imag[0], v, indexing="ij")
        return z, part, grid, torch.atleast_2d(y[0].conj())

    return program


def inputs(call):
    n = 5 if call == 2 else 3
    x = torch.randn(n, 4, dtype=torch.complex64).requires_grad_()
    y = torch.randn(n, 4, dtype=torch.complex64).requires_grad_()
    return (x * 1, y, torch.arange(4.0)), {}


LOSS, DYNAMIC = None, False

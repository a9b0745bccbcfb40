"""Written through views whose places are looked up, of what is conjugated or negated later."""

import torch


def make():
    def program(x, flag=False, number=2):
        x.mH.chunk(2)[0].mul_(3j)
        x.conj().tensor_split(2)[1].add_(2j)
        torch._neg_view(x.conj()).split(2)[0].add_(1j)
        x.adjoint().movedim(0, 1).add_(1j)

    return program


def inputs(call):
    return (torch.randn(2, 5 if call == 2 else 3, 4, dtype=torch.complex64),), {}


LOSS, DYNAMIC = None, False

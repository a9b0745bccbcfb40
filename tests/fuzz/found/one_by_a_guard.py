"""A size that a guard settles to one: what is written to memory made like it lies as in eager."""

import torch


def make():
    def program(x, flag=False, number=2):
        part = (x * 1).diagonal(1)[:, 1:3]
        half = x[:, x.shape[1] // 2 : -1]
        return torch.empty_like(part).copy_(part), torch.full_like(half, 2.0), half + part[0, 0]

    return program


def inputs(call):
    return (torch.randn(2, 3, 5 if call == 2 else 4),), {}


LOSS, DYNAMIC = None, True

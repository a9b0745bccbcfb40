"""An `as_strided` of a part that autograd takes for no view sees more than the part, and writes."""

import torch


def make():
    def program(x, flag=False, number=2):
        whole = x * 2
        part = whole.unsafe_chunk(2)[0]
        seen = part.as_strided((3,), (1,), 1)
        seen[0] = seen[1]
        return seen

    return program


def inputs(call):
    return ((torch.randn((2, 3)).requires_grad_(True),), {})


LOSS = None
DYNAMIC = False

"""What autograd follows is summed into bools in inference mode, which autograd itself refuses."""

import torch


def make():
    w = torch.randn((3, 4)).requires_grad_(True)

    def program(found, flag=False, number=2):
        with torch.inference_mode():
            torch.sum(w, 0, out=found)
        return w.float().sum(), found.clone()

    return program


def inputs(call):
    return (torch.rand(4) > 0.5,), {}


LOSS, DYNAMIC = 0, False

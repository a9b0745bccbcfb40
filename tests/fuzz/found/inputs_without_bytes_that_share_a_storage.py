"""An input without bytes is written, which counts as a write to its view, whose value is saved."""

import torch


def make():
    def program(x, part, flag=True, number=2):
        with torch.no_grad():
            x.div_(2)
        return torch.hypot(part, part)

    return program


def inputs(call):
    x = torch.zeros(0, 4, requires_grad=True)
    return (x, x.view(-1)), {}


LOSS, DYNAMIC = None, False

"""Written in place with what is larger: eager raises, for every operator and through a view."""

import torch

NAMES = ("add_", "pow_", "clamp_", "eq_", "atan2_", "masked_scatter_", "bernoulli_", "copy_")


def make():
    def program(x, flag=False, number=2):
        caught = 0
        for name in NAMES:
            for part in (x[:1] * 1, (x * 1)[:1]):
                others = {"masked_scatter_": (x > 0, x), "bernoulli_": (x.sigmoid(),)}.get(
                    name, (x,)
                )
                try:
                    getattr(part, name)(*others)
                except RuntimeError:
                    caught += 1
        return x * caught

    return program


def inputs(call):
    return (torch.randn(5 if call == 2 else 3, 4),), {}


LOSS, DYNAMIC = None, False

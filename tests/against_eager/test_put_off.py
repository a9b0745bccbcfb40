"""Conjugations and negations that torch puts off, in programs that ask for gradients themselves.

Autograd sees nothing of what such a graph runs; what computes them for a kernel still has to.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import foretrace

PUT_OFF: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda z: z.conj() * 2, "transposed": lambda z: z - z.mH,
    "product": lambda z: z.mH @ z, "exponential": lambda z: torch.matrix_exp(z - z.mH),
    "negated": lambda z: z.conj().imag + 1, "both": lambda z: torch.complex(z.conj().imag, z.real),
    "part": lambda z: z.conj()[1:].exp(), "reduced": lambda z: z.conj().sum(0).abs(),
    "solved": lambda z: torch.linalg.solve(z.mH @ z + torch.eye(3), z.conj()),
}  # fmt: skip


def asks(form: Callable[[Tensor], Tensor], z: Tensor) -> list[Tensor]:
    z = z.detach().requires_grad_()
    out = form(z)
    return [out, *torch.autograd.grad(out, z, torch.ones_like(out))]


def trains(form: Callable[[Tensor], Tensor], z: Tensor) -> list[Tensor]:
    weight = z.clone().detach().requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        form(weight).abs().sum().backward()
        optimizer.step()
    return [weight.detach().clone(), form(weight).detach()]


WAYS: dict[str, Callable[..., Any]] = {
    "compiled": lambda fn, z: foretrace.compile(fn, fullgraph=True),
    "compilers": lambda fn, z: foretrace.compile(
        fn, fullgraph=True, backend=foretrace.aot_autograd(fw_compiler=lambda module, _: module)
    ),
    "export": lambda fn, z: foretrace.capture(fn, (z,)).cut("export"),
    "aten": lambda fn, z: foretrace.capture(fn, (z,)).cut("aten"),
    "step": lambda fn, z: foretrace.capture(fn, (z,)).cut("step"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [asks, trains])
@pytest.mark.parametrize("form", PUT_OFF)
def test_is_computed(form: str, program: Callable[..., list[Tensor]], way: str) -> None:
    def fn(z: Tensor) -> list[Tensor]:
        return program(PUT_OFF[form], z)

    z = torch.randn(3, 3, dtype=torch.complex64)
    found = WAYS[way](fn, z)(z)
    for one, other in zip(tree_leaves(found), fn(z), strict=True):
        assert one.is_conj() == other.is_conj()
        assert one.is_neg() == other.is_neg()
        assert torch.equal(one, other)

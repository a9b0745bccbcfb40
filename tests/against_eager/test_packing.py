"""Hooks on what autograd saves: each route that trains is as eager, and no other is silent."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

import foretrace
from tests.programs import CASES, Case
from tests.programs.packing import changed
from tests.support.bits import differences
from tests.support.compare import same_as_eager
from tests.support.turns import crossed, one_in

BY_NAME = [pytest.param(case, id=name) for name, case in CASES.items() if case.section == "packing"]
BACKENDS: dict[str, Any] = {"eager": "eager", "as it is": lambda module, inputs: module}


@pytest.mark.parametrize("case", one_in(2, BY_NAME))
def test_joint_cuts_and_pairs(case: Case) -> None:
    """None is refused; composites that are kept whole have what hooks are given of them."""
    subject = case.subject()
    same_as_eager(subject.fn, subject.args, loss=case.loss, cuts=("aten", "joint"),
                  policies=("min_cut", "recompute_all"))  # fmt: skip
    opened = case.subject()
    same_as_eager(opened.fn, opened.args, loss=case.loss, cuts=("joint",), dynamic_shapes=True)
    kept = case.subject()
    same_as_eager(kept.fn, kept.args, loss=case.loss, cuts=("joint",), keep=[lambda _: True])


@pytest.mark.parametrize(("case", "backend"), crossed(BY_NAME, BACKENDS))
def test_compiled(case: Case, backend: str) -> None:
    sides = [case.subject(), case.subject()]
    compiled = foretrace.compile(sides[1].fn, fullgraph=True, backend=BACKENDS[backend])
    for _ in range(2):
        found = []
        for side, run in zip(sides, (sides[0].fn, compiled), strict=True):
            torch.manual_seed(0)
            outputs = run(*side.args)
            each = outputs if isinstance(outputs, tuple) else (outputs,)
            torch.stack([out.sin().sum() for out in each]).sum().backward()
            leaves = [*side.args, *dict(side.state()).values()]
            found.append([outputs, [x.grad for x in leaves]])
        assert list(differences(found[0], found[1], "")) == []
    assert not compiled.recaptures


def product(x: Tensor) -> Tensor:
    return (x.exp() * x).sum()


def slope(x: Tensor) -> Tensor:
    return torch.autograd.grad(product(x), x)[0]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [product, slope])
def test_called_under_hooks(fn: Callable[[Tensor], Tensor], backend: str, first: bool) -> None:
    """Hooks around a call see what they see of the program itself."""
    compiled = foretrace.compile(fn, fullgraph=True, backend=BACKENDS[backend])
    found = []
    for run in fn, compiled:
        x = torch.linspace(0, 1, 6).requires_grad_()
        if first:
            run(x.detach().requires_grad_())
        with changed():
            y = run(x)
        found.append([y, torch.autograd.grad(y, x) if y.requires_grad else None])
    assert list(differences(found[0], found[1], "")) == []


def test_in_the_order_of_eager() -> None:
    """Pack and unpack are called as often as in eager, one after the other as there."""

    def program(x: Tensor, w: Tensor) -> tuple[Tensor, list[int]]:
        seen: list[int] = []

        def pack(x: Tensor) -> tuple[int, Tensor]:
            seen.append(x.dim())
            return len(seen), x

        def unpack(both: tuple[int, Tensor]) -> Tensor:
            seen.append(-both[0])
            return both[1]

        with saved_tensors_hooks(pack, unpack):
            y = torch.nn.functional.layer_norm(x @ w, (3,)).tanh() * x.sum()
            z = torch.nn.functional.scaled_dot_product_attention(y, y, y)
        return torch.autograd.grad(z.sum(), w)[0], seen

    args = torch.randn(4, 3), torch.randn(3, 3, requires_grad=True)
    _, eager = program(*args)
    _, found = foretrace.capture(program, args).cut("aten")(*args)
    assert found == eager
    assert min(eager) < 0 < max(eager)

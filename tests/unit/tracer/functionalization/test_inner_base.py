"""Composites that give a view of memory made inside: opened where that is written after a use."""

from typing import Any

import torch

from foretrace.ir.program.op import AS_STRIDED
from foretrace.ir.program.walk import outs_in
from foretrace.tracer.functionalization.inner_view_base import WRITTEN
from tests.support.trees import recorded

X = torch.zeros(2, 3, requires_grad=True)


def tensordot(x: Any) -> torch.Tensor:
    return torch.einsum("ij,ij->i", x, x)


def opened(fn: Any, *args: Any) -> list[bool]:
    return [op.choice is WRITTEN for op in recorded(fn, *args).ops]


def test_a_use_before_the_write_opens_it() -> None:
    def fn(x):
        y = tensordot(x)
        used = y.sin()
        return y.mul_(2), used

    assert opened(fn, X)[0]


def test_a_write_alone_leaves_it_whole() -> None:
    assert not any(opened(lambda x: tensordot(x).mul_(2), X))


def test_what_autograd_does_not_follow_stays_whole() -> None:
    def fn(x):
        y = tensordot(x)
        used = y.sin()
        return y.mul_(2), used

    assert not any(opened(fn, X.detach()))


def test_the_base_gets_the_new_value_and_the_view_is_taken_again() -> None:
    def fn(x):
        y = tensordot(x)
        used = y.sin()
        y.mul_(2)
        return y.cos(), used

    made, _, write, again, _ = recorded(fn, X).ops
    (base, _), (new,) = write.args, write.outs
    assert base.type.shape == (2, 1, 1)
    assert base in outs_in(made.body)
    assert write.target.steps[0].base is base
    assert (again.target, again.args) == (AS_STRIDED, (new, [2], [1], 0))

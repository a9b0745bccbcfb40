"""A write through a view that autograd follows: in place, on a copy of what is viewed."""

from typing import Any

import torch

from foretrace.autograd.eager_history.view_writes import through_views, writes_through_views
from foretrace.ir.program.op import Op
from tests.support.trees import assert_tree, recorded, semantics

X = torch.zeros(2, 3)
INFER = semantics().inference.infer
GRAD = X.clone().requires_grad_()


def write(fn: Any, x: Any = GRAD) -> Op:
    """The op by which `fn` writes to what `x` is negated to."""
    return next(op for op in recorded(lambda x: fn(x.neg()), x).ops if op.writes)


def test_the_views_are_taken_of_a_copy() -> None:
    op = write(lambda y: y[1].mul_(2))
    assert writes_through_views(op)
    assert_tree(
        list(through_views(op, INFER)),
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.select.int(%1, 0, 1): f32[3] at 3 grad
%3 = aten.mul_.Tensor(%2, 2): f32[3] at 3 grad
""",
    )


def test_each_view_is_of_the_one_before() -> None:
    assert_tree(
        list(through_views(write(lambda y: y[1][2:].add_(1)), INFER)),
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.select.int(%1, 0, 1): f32[3] at 3 grad
%3 = aten.slice.Tensor(%2, 0, 2, 9223372036854775807): f32[1] at 5 grad
%4 = aten.add_.Tensor(%3, 1): f32[1] at 5 grad
""",
    )


def test_a_view_of_what_was_written_before_is_where_that_is() -> None:
    def written(y: torch.Tensor) -> torch.Tensor:
        seen = y[1:].flatten()
        seen.mul_(2)
        seen.sin_()
        return y

    *_, last = (op for op in recorded(lambda x: written(x.neg()), GRAD).ops if op.writes)
    assert [op.outs[0].type.offset for op in through_views(last, INFER)] == [0, 3, 3, 3]


def test_a_composite_view_is_taken_by_strides() -> None:
    body = list(through_views(write(lambda y: y.narrow(1, 1, 2).mul_(2)), INFER))
    assert [str(op.target) for op in body] == [
        "aten.clone.default", "aten.as_strided.default", "aten.mul_.Tensor",
    ]  # fmt: skip


def test_what_is_not_followed_or_no_view_is_left() -> None:
    assert not writes_through_views(write(lambda y: y[1].mul_(2), X))
    assert not writes_through_views(write(lambda y: y.mul_(2)))
    assert not writes_through_views(write(lambda y: torch.no_grad()(y[1].mul_)(2)))

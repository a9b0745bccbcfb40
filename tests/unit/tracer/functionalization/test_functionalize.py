"""`functionalize`: an op in place becomes an op whose out the memory's owner holds then."""

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Write
from tests.support.trees import assert_tree, recorded

X = torch.zeros(2, 3)


def test_a_write_is_its_functional_form() -> None:
    def fn(x):
        y = x.neg()
        return y.add_(1, alpha=2)

    assert_tree(
        recorded(fn, X).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.add_.Tensor!(%0, 1, alpha=2): f32[2, 3]
    %1 = aten.add.Tensor(%0, 1, alpha=2): f32[2, 3]
""",
    )


def test_a_write_to_a_view_scatters_into_the_owner() -> None:
    def fn(x):
        y = x.neg()
        y.t()[0].mul_(3)
        return y

    assert_tree(
        recorded(fn, X).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.t.default(%0): f32[3, 2] by [1, 3]
%2 = aten.select.int(%1, 0, 0): f32[2] by [3]
%3 = mul_!(%0, [%2, 3]): f32[2, 3]
    %4 = aten.mul.Tensor(%2, 3): f32[2]
    %5 = aten.select_scatter.default(%1, %4, 0, 0): f32[3, 2] by [1, 3]
    %3 = aten.t.default(%5): f32[2, 3]
""",
    )


def test_a_view_is_taken_again_after_a_write_to_its_base() -> None:
    def fn(x):
        y = x.neg()
        part = y[0]
        y.add_(1)
        return part.sin()

    assert_tree(
        recorded(fn, X).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.select.int(%0, 0, 0): f32[3]
%2 = aten.add_.Tensor!(%0, 1): f32[2, 3]
    %2 = aten.add.Tensor(%0, 1): f32[2, 3]
%3 = aten.select.int(%2, 0, 0): f32[3]
%4 = aten.sin.default(%3): f32[3]
""",
    )


def test_a_view_that_is_not_read_again_is_not_taken_again() -> None:
    def fn(x):
        y = x.neg()
        part = y[0]
        y.add_(1)
        return y, part.shape[0]

    assert_tree(
        recorded(fn, X).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.select.int(%0, 0, 0): f32[3]
%2 = aten.add_.Tensor!(%0, 1): f32[2, 3]
    %2 = aten.add.Tensor(%0, 1): f32[2, 3]
""",
    )


def test_new_content_has_the_dtype_and_strides_of_the_old() -> None:
    def fn(x, w):
        y = x.t().clone(memory_format=torch.preserve_format)
        return y.copy_(w)

    assert_tree(
        recorded(fn, X, torch.zeros(3, 2, dtype=torch.int64)).ops,
        """\
%0 = aten.t.default(%x): f32[3, 2] by [1, 3]
%1 = aten.clone.default(%0, memory_format=torch.preserve_format): f32[3, 2] by [1, 3]
%2 = aten.copy_.default!(%1, %w): f32[3, 2] by [1, 3]
    %3 = aten._to_copy.default(%w, dtype=torch.float32, device=device('cpu')): f32[3, 2]
    %4 = aten.permute.default(%3, [1, 0]): f32[2, 3] by [1, 2]
    %5 = aten.clone.default(%4, memory_format=torch.contiguous_format): f32[2, 3]
    %2 = aten.permute.default(%5, [1, 0]): f32[3, 2] by [1, 3]
""",
    )


def test_a_write_under_no_grad_keeps_the_history() -> None:
    def fn(x):
        y = x.neg()
        with torch.no_grad():
            y.mul_(2)
        return y

    ops = recorded(fn, X.clone().requires_grad_()).ops
    assert isinstance(ops[1].target, Write)
    assert not ops[1].target.followed
    assert_tree(
        ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3] grad
%1 = mul_!(%0, [%0, 2]): f32[2, 3] grad
    %1 = aten.mul.Tensor(%0, 2): f32[2, 3] grad
""",
    )


def test_a_write_through_detach_keeps_the_history() -> None:
    def fn(x):
        y = x.neg()
        y.detach().zero_()
        return y

    assert_tree(
        recorded(fn, X.clone().requires_grad_()).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3] grad
%1 = aten.detach.default(%0): f32[2, 3]
%2 = zero_!(%0, [%1]): f32[2, 3] grad
    %2 = aten.zero.default(%1): f32[2, 3] grad
""",
    )


def test_statistics_are_results_beside_the_op_s_own() -> None:
    def fn(x, mean, var):
        return torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0]

    found = recorded(fn, X, torch.zeros(3), torch.ones(3))
    (op,) = found.ops
    assert [str(inner.target) for inner in op.body] == [
        "aten._native_batch_norm_legit_functional.default"
    ]
    assert op.body[0].outs == op.outs
    assert [(m.index, m.value) for m in found.mutations] == [(1, op.outs[3]), (2, op.outs[4])]


def test_a_copy_has_memory_of_its_own() -> None:
    def fn(x, y):
        return x.neg().copy_(y), y

    assert_tree(
        recorded(fn, X, X.clone()).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.copy_.default!(%0, %y): f32[2, 3]
    %1 = aten.clone.default(%y): f32[2, 3]
""",
    )


def test_an_operand_that_the_functional_form_gives_back_is_cloned() -> None:
    assert_tree(
        recorded(lambda x: x.neg().conj_physical_(), X).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.conj_physical_.default!(%0): f32[2, 3]
    aten.conj_physical.default(%0)
        pass
    %1 = aten.clone.default(%0): f32[2, 3]
""",
    )


def test_a_write_that_would_cast_down_is_refused_as_in_eager() -> None:
    with pytest.raises(Refusal, match="can't be cast"):
        recorded(lambda x: x.long().mul_(0.5), X)


def test_a_write_of_a_larger_shape_is_refused_as_in_eager() -> None:
    with pytest.raises(Refusal, match="doesn't match the broadcast shape"):
        recorded(lambda x, y: x.neg().add_(y), torch.zeros(3), X)

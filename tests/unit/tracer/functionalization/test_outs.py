"""What `out=` and `resize_` leave: by the functional form where that gives the very same type."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from tests.support.trees import assert_tree, recorded

X = torch.zeros(2, 3)


def into(out: torch.Tensor, fn: Any = torch.neg) -> list[Op]:
    return recorded(lambda x, out: fn(x, out=out.neg()), X, out).ops[1:]


def test_an_out_of_the_result_s_type_takes_the_functional_form() -> None:
    assert_tree(
        into(torch.zeros(2, 3)),
        """\
%1 = aten.neg.out!(%x, out=%0): f32[2, 3]
    %1 = aten.neg.default(%x): f32[2, 3]
""",
    )


def test_an_out_of_another_layout_is_computed_in_place_on_new_memory() -> None:
    assert_tree(
        into(torch.zeros(3, 2).t()),
        """\
%1 = aten.neg.out!(%x, out=%0): f32[2, 3] by [1, 2]
    %2 = aten.permute.default(%0, [1, 0]): f32[3, 2]
    %3 = aten.clone.default(%2, memory_format=torch.contiguous_format): f32[3, 2]
    %4 = aten.permute.default(%3, [1, 0]): f32[2, 3] by [1, 2]
    %1 = aten.neg.out(%x, out=%4): f32[2, 3] by [1, 2]
""",
    )


def test_an_out_of_another_dtype_is_computed_in_that() -> None:
    assert_tree(
        into(torch.zeros(2, 3, dtype=torch.float64)),
        """\
%1 = aten.neg.out!(%x, out=%0): f64[2, 3]
    %2 = aten.clone.default(%0, memory_format=torch.contiguous_format): f64[2, 3]
    %1 = aten.neg.out(%x, out=%2): f64[2, 3]
""",
    )


def test_an_out_of_other_sizes_gets_memory_of_the_result_s() -> None:
    assert_tree(
        into(torch.zeros(0)),
        """\
%1 = aten.neg.out!(%x, out=%0): f32[2, 3]
    %2 = aten.new_empty_strided.default(%0, [2, 3], [3, 1]): f32[2, 3]
    %1 = aten.neg.default(%x): f32[2, 3]
""",
    )


def test_an_input_of_other_sizes_is_refused() -> None:
    with pytest.raises(Refusal, match="is resized in place"):
        recorded(lambda x, out: torch.neg(x, out=out), X, torch.zeros(0))


def test_an_out_that_others_see_is_not_resized() -> None:
    def fn(x, out):
        out = out.neg()
        seen = out[:1]
        return torch.neg(x, out=out), seen

    with pytest.raises(Refusal, match="others see its memory"):
        recorded(fn, X, torch.zeros(4))


def test_an_out_that_is_read_and_resized_is_refused() -> None:
    with pytest.raises(Refusal, match="reads a tensor that it resizes"):
        recorded(lambda x, y: torch.add(x, z := y.neg(), out=z), X, torch.zeros(3))


def test_a_resize_to_the_same_sizes_does_nothing() -> None:
    assert recorded(lambda x: x.neg().resize_(2, 3), X).ops[1:] == []


def test_a_resize_of_nothing_is_new_memory() -> None:
    ops = recorded(lambda x: x.neg().resize_(2, 3), torch.zeros(0)).ops
    assert_tree(
        ops[1:],
        """\
%1 = aten.new_empty_strided.default(%0, [2, 3], [3, 1]): f32[2, 3]
""",
    )


def test_a_resize_of_what_holds_something_is_refused() -> None:
    with pytest.raises(Refusal, match="of a tensor of"):
        recorded(lambda x: x.neg().resize_(3), X)

"""What forward-mode autograd asks of tensors, answered by their types."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.tracer.forward_ad.jvp_queries import (
    refuse_dual,
    same_memory,
    same_size,
    zeros_like_in_memory,
)
from foretrace.tracer.functionalization.op_call import Call
from tests.support.trees import recorder, tree

aten = torch.ops.aten
VALUES = """\
%x: f32[2, 3]
%y: f64[2, 3]
%flat: f32[6]
%rows: f32[2, 3] by [4, 1]
"""


def call(func: Any, *names: str) -> Call:
    """A call of an operator on two of the values."""
    values, run = tree(VALUES)[0], recorder()
    given = [values[name] for name in names]
    return Call(run, func, given, {}, [run.abstract(value) for value in given], given)


@pytest.mark.parametrize(("other", "same"), [("y", True), ("rows", True), ("flat", False)])
def test_sizes_are_compared_without_data(other: str, same: bool) -> None:
    assert same_size(call(aten.is_same_size.default, "x", other)) == same


@pytest.mark.parametrize(("other", "same"), [("flat", True), ("y", True), ("rows", False)])
def test_memory_is_compared_in_elements(other: str, same: bool) -> None:
    assert same_memory(call(aten._has_same_storage_numel.default, "x", other)) == same


def test_zeros_have_the_room_of_the_second_operand() -> None:
    zeros = call(aten._new_zeros_with_same_feature_meta.default, "x", "rows")
    found = zeros_like_in_memory(zeros)
    assert found.ft_value.type.stride == (4, 1)
    assert zeros.recorder.forward.rooms[found.ft_value] == 7
    assert [op.outs for op in zeros.recorder.scope.ops] == [(found.ft_value,)]


def test_dual_numbers_are_refused() -> None:
    with pytest.raises(Refusal, match="dual numbers"):
        refuse_dual(call(aten._make_dual.default, "x", "x"))

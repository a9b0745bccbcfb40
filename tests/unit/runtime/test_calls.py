"""Tangents of a call: their sizes follow from what they are for."""

import pytest
import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.runtime.calls.tangents import sizes_by_data, strides_of

A, B = sympy.symbols("a b", integer=True, positive=True)


def tangent_of(*shape: int | sympy.Expr) -> Input:
    stride = [1]
    for size in shape[:0:-1]:
        stride.insert(0, size * stride[0])
    typed = TensorType(shape, tuple(stride), torch.float32, torch.device("cpu"))
    return Input(Value(typed), Role("tangent", "out"))


def test_a_size_of_data_is_read_off_the_tangent() -> None:
    sizes = sizes_by_data(tangent_of(A, 3), torch.ones(5, 3), {})
    assert sizes[A] == 5
    assert strides_of(tangent_of(A, 3), torch.ones(5, 3), sizes) == (3, 1)


def test_one_of_two_that_are_added_is_put_in_terms_of_the_other() -> None:
    sizes = sizes_by_data(tangent_of(A + B, 3), torch.ones(7, 3), {})
    assert sizes[A + B] == 7
    assert sizes[A] == 7 - B
    assert sizes_by_data(tangent_of(A + B, 3), torch.ones(7, 3), {B: 3})[A] == 4


@pytest.mark.parametrize("wrong", [torch.ones(4, 3), torch.ones(5, 3, dtype=torch.float64)])
def test_another_shape_or_dtype_is_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(Refusal) as raised:
        strides_of(tangent_of(5, 3), wrong, {})
    assert raised.value.kind == "wrong tangents"

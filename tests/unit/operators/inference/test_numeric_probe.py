"""What is recorded of any float: recordings with several numbers, held to be one."""

import math

import pytest
import sympy
import torch

from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.rewriter import RecordedBody
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.inference.numeric_probe import (
    stand_in_numbers,
    with_any_number,
    with_symbols,
)

A, B = sympy.symbols("a b", real=True)
HERE = Origin(None, None)
TYPE = TensorType((4,), (1,), torch.float32, torch.device("cpu"))
mul, neg = torch.ops.aten.mul.Tensor, torch.ops.aten.neg.default


def recording(*constants, target=mul, shared=False):
    """A program that multiplies what it is given by some numbers."""
    x = value = Value(TYPE)
    ops = []
    for constant in constants:
        new = Value(TYPE)
        ops.append(Op(target, (value, constant), {}, new, (new,), origin=HERE))
        value = new
    if shared:
        param, out = Value(TYPE), Value(TYPE)
        call = Op("f", (param,), {}, out, (out,), origin=HERE,
                  below=RecordedBody((x,), tuple(ops), (value,)))  # fmt: skip
        return Subgraph("", (param,), (call,), (out,))
    return Subgraph("", (x,), tuple(ops), (value,))


@pytest.mark.parametrize("shared", [False, True])
def test_a_number_that_is_handed_on_is_its_symbol(shared):
    record = lambda numbers: recording(numbers[A], 0.5, numbers[B], shared=shared)  # noqa: E731
    ops, apart = with_any_number(record, (A, B), {A: 0.1, B: 0.2})
    inner = ops[0].definition.ops if shared else ops
    assert [op.args[1] for op in inner] == [A, 0.5, B]
    assert apart == []


def test_what_depends_on_a_number_is_not_recorded():
    known = {A: 0.1}
    assert with_any_number(lambda n: recording(n[A] * 2), (A,), known) is None
    assert with_any_number(lambda n: recording(*[n[A]] * (1 + (n[A] > 1))), (A,), known) is None
    by_sign = lambda n: recording(n[A], target=mul if n[A] > 0 else neg)  # noqa: E731
    assert with_any_number(by_sign, (A,), known) is None


def test_a_number_with_a_case_of_its_own():
    """`x * 1` is left out: any other number is handed on."""
    record = lambda n: recording(*([n[A]] if n[A] != 1.0 else []))  # noqa: E731
    ops, apart = with_any_number(record, (A,), {A: 0.1})
    assert [op.args[1] for op in ops] == [A]
    assert apart == [(A, 1.0)]
    assert with_any_number(record, (A,), {A: 1.0}) is None  # that of the run has the case


def test_a_case_of_no_number_is_none_to_keep_apart():
    record = lambda n: recording(*([n[A]] if not math.isnan(n[A]) else []))  # noqa: E731
    assert with_any_number(record, (A,), {A: 0.1}) is None


def test_symbols_are_put_in_copies_over_the_same_values():
    number = stand_in_numbers((A,))[A]
    one = recording(number, 2.0)
    ops = with_symbols(one.ops, (A,))
    assert [op.args[1] for op in one.ops] == [number, 2.0]
    assert [op.args[1] for op in ops] == [A, 2.0]
    assert [op.outs for op in ops] == [op.outs for op in one.ops]

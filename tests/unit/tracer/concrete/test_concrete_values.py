"""Calls of computed operands are numbered: equal where they compute the same again."""

import torch

from foretrace.ir.program.op import Subgraph, Value
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.program.walk import subgraphs_of
from foretrace.tracer.concrete.concrete_values import Constants
from tests.support.notation import read

add, mul = torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor
TYPE = TensorType((4,), (1,), torch.float32, torch.device("cpu"))
HELD = """
%p: b8[]
%x: f32[4]
%0 = higher_order.cond(%p, @yes, @no, [%x]): f32[4]
    @yes(%a: f32[4]) -> [%1]
        %1 = aten.mul.Tensor(%a, 0.5): f32[4]
    @no(%b: f32[4]) -> [%2]
        %2 = aten.cos.default(%b): f32[4]
"""


def constants(*values: Value) -> Constants:
    """Constants that have computed these values already, each by itself."""
    found = Constants(lambda item: item)
    for value in values:
        found.give(value, torch.zeros(4))
        found._follows_from(value)
    return found


def test_calls_are_told_by_operator_operands_and_constants():
    a, b = Value(TYPE), Value(TYPE)
    form = constants(a, b).form
    first = form(add, ((a, b), {"alpha": 1}))
    assert form(add, ((a, b), {"alpha": 1})) == first
    others = [
        form(mul, ((a, b), {"alpha": 1})),
        form(add, ((b, a), {"alpha": 1})),
        form(add, ((a, a), {"alpha": 1})),
        form(add, ((a, b), {"alpha": 1.0})),
        form(add, ((a, b), {"alpha": True})),
        form(add, ((a, [b]), {"alpha": 1})),
        form(add, ((a, b, 0.0), {})),
        form(add, ((a, b, -0.0), {})),
    ]
    assert len({first, *others}) == 1 + len(others)
    assert form(add, ((a, b, -0.0), {})) == others[-1]


def test_values_that_were_computed_alike_are_one_operand():
    a = Value(TYPE)
    held = constants(a)
    one, two, three = Value(TYPE), Value(TYPE), Value(TYPE)
    for value, factor in ((one, 2), (two, 2), (three, 3)):
        held._forms[value] = held.form(mul, ((a, factor), {}))
    first = held.form(add, ((one, 1), {}))
    assert held.form(add, ((two, 1), {})) == first
    assert held.form(add, ((three, 1), {})) != first


def calls(text: str) -> tuple[tuple[Value, ...], list[Subgraph]]:
    (op,) = read(text)[1]
    return op.operands, subgraphs_of(op)


def test_programs_that_an_op_holds_are_told_by_what_they_do():
    (p, x), programs = calls(HELD)
    form = constants(p, x).form

    def of(text: str) -> int:
        return form("cond", ((p, *calls(text)[1], [x]), {}))

    first = form("cond", ((p, *programs, [x]), {}))
    assert of(HELD) == first
    assert of(HELD.replace("0.5", "0.25")) != first
    assert of(HELD.replace("-> [%1]", "-> [%a]")) != first
    assert of(HELD.replace("aten.cos", "aten.sin")) != first

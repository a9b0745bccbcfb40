"""Trees as text: what is written is read back the same."""

import pytest
import sympy
import torch

import foretrace
from foretrace import torch_api
from foretrace.ir.program.op import Op
from foretrace.ir.program.walk import every_op, subgraphs_of
from tests.programs import Case
from tests.support.notation import read, write
from tests.support.turns import ZOO, one_in

TREE = """\
%x: f32[4, 8] grad
%w: f32[3, 8] by [1, 3] at 5
%0 = aten.linear.default(%x, %w, None): f32[4, 3] grad
    %1 = aten.t.default(%w): f32[8, 3] by [3, 2] at 5
    %0 = aten.mm.default(%x, %1): f32[4, 3] grad
%2 = aten.full.default([2, 3], -1.5, dtype=torch.float32, device=device('cpu')): f32[2, 3]
%3, %4 = aten.max.dim(%0, -1, True): f32[4, 1] grad, i64[4, 1]
%5 = aten.dropout.default(%3, 0.5, False): f32[4, 1] grad
    pass
%6 = aten.add_.Tensor!(%2, 1, alpha=2): f32[2, 3]
    %6 = aten.add.Tensor(%2, 1, alpha=2): f32[2, 3]
"""


def test_there_and_back() -> None:
    values, ops = read(TREE)
    assert write(ops) == TREE
    linear, full, most, dropout, added = ops
    assert linear.args[0] is values["x"]
    assert linear.body[1].outs == linear.outs
    assert linear.target is torch.ops.aten.linear.default
    assert full.kwargs == {"dtype": torch.float32, "device": torch.device("cpu")}
    assert full.args == ([2, 3], -1.5)
    assert [out.type.dtype for out in most.outs] == [torch.float32, torch.int64]
    assert dropout.body == []
    assert added.writes
    assert values["w"].type.offset == 5


WITH_PROGRAMS = """\
%y: f32[4]
%x: f32[4] grad
u0 = aten._local_scalar_dense.default(%y)
aten._assert_scalar.default(<u0 > 2>, 'is <u0>, or "%x"')
%0 = aten.slice.Tensor(%x, 0, 0, <u0 + 1>): f32[u0 + 1] grad
%1 = aten.gt.Scalar(%y, 0): b8[]
%2 = higher_order.cond(%1, @true_graph, @false_graph, [%0, %y]): f32[u0 + 1] grad
    @true_graph(%a: f32[u0 + 1], %y) -> [%3]
        %3 = aten.sin.default(%a): f32[u0 + 1]
    @false_graph(%b: f32[u0 + 1], %y) -> [%4]
        %4 = aten.mul.Tensor(%b, %y): f32[u0 + 1]
%5 = higher_order.while_loop(@goes_on, @round, [%2], [<u0>]): f32[u0 + 1]
    @goes_on(%c: f32[u0 + 1], <u0>) -> %6
        %6 = aten.sum.default(%c): b8[]
    @round(%d: f32[u0 + 1], <u0>) -> [%d]
"""


def test_programs_sizes_and_conditions() -> None:
    values, ops = read(WITH_PROGRAMS)
    assert write(ops) == WITH_PROGRAMS
    number, said, part, _, cond, loop = ops
    assert number.result == sympy.Symbol("u0", integer=True)
    assert not number.outs
    assert said.args == (number.result > 2, 'is <u0>, or "%x"')
    assert part.outs[0].type.shape == (number.result + 1,)
    on, off = subgraphs_of(cond)
    assert [held.name for held in (on, off)] == ["true_graph", "false_graph"]
    assert off.params[1] is values["y"]
    assert off.ops[0].args == off.params
    assert on.result == on.ops[0].outs
    goes_on, _ = subgraphs_of(loop)
    assert goes_on.params[1] == number.result
    assert goes_on.result is goes_on.ops[0].outs[0]


@pytest.mark.parametrize(
    "line", ["%0 = aten.mul.Tensor(%x): g32[2]", "mul(%0", "%0 = aten.mul.Tensor(x + 1): f32[2]"]
)
def test_what_is_not_in_this_form(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        read(f"%x: f32[2]\n{line}\n")


def of_torch(ops: list[Op]) -> bool:
    return all(
        hasattr(op.target, "overloadpacket") or isinstance(op.target, torch_api.HigherOrderOperator)
        for op in every_op(ops)
    )


@pytest.mark.parametrize("case", one_in(12, ZOO, turn=5))
def test_the_leaves_of_any_program(case: Case) -> None:
    given = case.subject()
    try:
        program = foretrace.capture(given.fn, given.args, given.kwargs)
        ops = program.cut("aten").graph.ops
    except foretrace.Refusal:
        return
    if of_torch(ops):
        text = write(ops)
        assert write(read(text)[1]) == text

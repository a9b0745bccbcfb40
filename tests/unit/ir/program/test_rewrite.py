"""Copies of ops with other values: in arguments, bodies, subgraphs and views."""

from dataclasses import replace

import torch

from foretrace.ir.program.op import AS_STRIDED, Op, ViewStep, Write
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.rewriter import RecordedBody, Rewriter, copy_ops
from foretrace.ir.program.walk import rename, subgraphs_of
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from tests.support.notation import read, write
from tests.support.trees import COND

HERE = Origin(None, None)
BODY = """
%x: f32[4, 8]
%w: f32[4, 8]
%0 = aten.linear.default(%x, %w, None): f32[4, 4]
    %1 = aten.t.default(%w): f32[8, 4] by [1, 8]
    %0 = aten.mm.default(%x, %1): f32[4, 4]
%2 = aten.cat.default([%0, %0], 1): f32[4, 8]
"""
TYPE = TensorType((4,), (1,), torch.float32, torch.device("cpu"))


def test_a_copy_makes_values_of_its_own():
    values, ops = read(BODY)
    rewriter = Rewriter()
    copies = rewriter.ops(ops)
    assert write(copies) == write(ops)
    made = {out for op in (*ops, *(ops[0].own or ())) for out in op.outs}
    again = {out for op in (*copies, *(copies[0].own or ())) for out in op.outs}
    assert made.isdisjoint(again)
    assert set(rewriter.env) == made
    assert copies[0].operands == (values["x"], values["w"])  # what none makes stays


def test_a_copy_reads_what_stands_for_a_value_in_its_body_too():
    values, ops = read(BODY)
    new = Value(values["w"].type, "other")
    (copy, _) = Rewriter({values["w"]: new}).ops(ops)
    assert copy.operands == (values["x"], new)
    assert copy.own is not None
    assert copy.own[0].operands == (new,)
    assert copy.own[-1].outs == copy.outs


def test_an_op_that_makes_what_stands_for_its_result():
    _, ops = read(BODY)
    (result,) = ops[1].outs
    wanted = Value(result.type)
    copies = Rewriter({result: wanted}).ops(ops)
    assert copies[1].outs == (wanted,)
    assert copies[1].result is wanted


def test_each_hook_is_asked():
    class Other(Rewriter):
        def type(self, type):
            return type.but(dtype=torch.float64)

        def leaf(self, leaf):
            return 2 if leaf == 1 else leaf

        def target(self, target):
            return torch.ops.aten.stack.default if target is torch.ops.aten.cat.default else target

        def origin(self, origin):
            return replace(origin, inference=True)

    copies = Other().ops(read(BODY)[1])
    assert write(copies).splitlines()[-1] == "%2 = aten.stack.default([%0, %0], 2): f64[4, 8]"
    assert all(op.origin.inference for op in (*copies, *(copies[0].own or ())))


def test_a_subgraph_is_the_same_unless_a_rewriter_says():
    _, ops = read(COND)

    class Halved(Rewriter):
        def leaf(self, leaf):
            return leaf / 2 if isinstance(leaf, float) else leaf

    class Inside(Halved):
        def subgraph(self, subgraph):
            inner = Inside()
            return replace(subgraph, ops=tuple(inner.ops(subgraph.ops)),
                           result=inner.tree(subgraph.result))  # fmt: skip

    assert subgraphs_of(Halved().op(ops[0])) == subgraphs_of(ops[0])
    assert "aten.mul.Tensor(%a, 0.25)" in write([Inside().op(ops[0])])
    assert "0.5" in write(ops)


def test_a_shared_body_is_shared_and_speaks_of_the_copys_values():
    _, (inner,) = read("%p: f32[4]\n%0 = aten.sin.default(%p): f32[4]")
    (param,) = inner.operands
    shared = RecordedBody((param,), (inner,), inner.outs)
    x, y, other = Value(TYPE), Value(TYPE), Value(TYPE)
    call = Op("f", (x,), {}, y, (y,), origin=HERE, below=shared)
    copy = Rewriter({x: other}).op(call)
    assert copy.below is shared
    assert copy.body is not None
    assert copy.body[0].operands == (other,)
    assert copy.body[0].outs == copy.outs
    assert call.body is not None
    assert call.body[0].operands == (x,)


def test_the_ops_of_a_call_have_its_line_and_its_reason():
    _, ops = read(BODY)
    ops[1].origin.grad_mode = False
    served = Op("served", (), {}, None, (), origin=HERE)
    origin = Origin(None, None, inference=True)
    call = Op("call", (), {}, None, (), origin=origin, because=served, asked=True)
    plain, silent = copy_ops(ops, {}, call)
    assert plain.origin is origin
    assert (silent.origin.inference, silent.origin.grad_mode) == (True, False)
    assert plain.because is served
    assert plain.asked


def test_a_renamed_op_keeps_what_it_makes():
    values, ops = read(BODY)
    new = Value(values["x"].type)
    renamed = rename(ops[0], {values["x"]: new})
    assert renamed.operands == (new, values["w"])
    assert renamed.outs == ops[0].outs
    assert renamed.own is not None
    assert renamed.own[0] is ops[0].own[0]  # it reads `w` alone
    assert renamed.own[1].operands[0] is new


def test_an_op_that_a_renaming_does_not_concern_is_itself():
    values, ops = read(BODY)
    assert rename(ops[1], {values["x"]: Value(values["x"].type)}) is ops[1]
    (result,) = ops[1].outs
    other = rename(ops[1], {result: Value(result.type)})
    assert other is not ops[1]
    assert other.args is ops[1].args  # by which an explanation knows it


def test_a_view_of_another_base():
    base, other, written, out = (Value(TYPE) for _ in range(4))
    args = (base, [2], [1], 0)
    step = ViewStep(AS_STRIDED, args, {}, base, 0, grad_mode=True, followed=True)
    now = Rewriter({base: other}).step(step)
    assert now.base is other
    assert now.args == (other, [2], [1], 0)
    assert step.base is base

    class Viewed(Rewriter):
        def target(self, target):
            return replace(target, steps=tuple(map(self.step, target.steps)))

    op = Op(Write("fill", (step,), True), (base, (written,)), {}, out, (out,), origin=HERE)
    assert Viewed({base: other}).op(op).target.steps[0].base is other

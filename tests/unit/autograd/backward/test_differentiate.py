"""`Differentiation.walk`: the ops that the backward of a small tree has, in the engine's order."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.errors import Refusal
from foretrace.ir.program.op import Backward, Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level, flatten
from tests.support.trees import assert_tree, recorded, semantics, tree

LEAVES = Level(written=False)


def walk(ops: Any, root: Value, level: Level = LEAVES, overwritten: Any = None) -> Differentiation:
    """The walk over ops from a gradient of `root`, which is called g."""
    known = semantics()
    asked = known.derivatives, known.inference, known.table
    found = Differentiation(*asked, level.whole, {}, VersionCounters(overwritten or {}))
    found.gradients[root] = Value(root.type.with_grad(False), "g")
    found.stale.meet(ops)
    found.walk(ops)
    return found


def backward(
    text: str, level: Level = LEAVES
) -> tuple[Differentiation, list[Op], dict[str, Value]]:
    """The walk from y, the flat backward ops, and the values by name."""
    values, ops = tree(text)
    found = walk(ops, values["y"], level)
    return found, list(flatten(found.scope.ops, level)), values


def test_one_op_has_torch_s_own_formula() -> None:
    _, ops, _ = backward("%x: f32[2] grad\n%y = aten.sin.default(%x): f32[2] grad\n")
    assert_tree(
        ops,
        """\
%0 = aten.cos.default(%x): f32[2]
%1 = aten.mul.Tensor(%g, %0): f32[2]
""",
    )


def test_every_backward_op_says_which_op_it_serves_and_by_which_rule() -> None:
    found, ops, values = backward("%x: f32[2] grad\n%y = aten.sin.default(%x): f32[2] grad\n")
    (op,) = found.scope.ops
    assert isinstance(op.target, Backward)
    assert {each.because.outs for each in [op, *ops]} == {(values["y"],)}
    assert {each.rule.name for each in [op, *ops]} == {"SinBackward0"}


def test_gradients_of_a_value_are_added_as_they_arrive_the_last_use_first() -> None:
    found, ops, values = backward(
        "%x: f32[2] grad\n"
        "%a = aten.sin.default(%x): f32[2] grad\n"
        "%b = aten.exp.default(%x): f32[2] grad\n"
        "%y = aten.mul.Tensor(%a, %b): f32[2] grad\n"
    )
    assert_tree(
        ops,
        """\
%0 = aten.mul.Tensor(%g, %a): f32[2]
%1 = aten.mul.Tensor(%g, %b): f32[2]
%2 = aten.mul.Tensor(%0, %b): f32[2]
%3 = aten.cos.default(%x): f32[2]
%4 = aten.mul.Tensor(%1, %3): f32[2]
%5 = aten.add.Tensor(%2, %4): f32[2]
""",
    )
    assert found.gradients[values["x"]] is ops[-1].outs[0]


def test_a_value_used_twice_by_one_op_gets_both_in_order() -> None:
    _, ops, _ = backward("%x: f32[2] grad\n%y = aten.mul.Tensor(%x, %x): f32[2] grad\n")
    assert_tree(
        ops,
        """\
%0 = aten.mul.Tensor(%g, %x): f32[2]
%1 = aten.mul.Tensor(%g, %x): f32[2]
%2 = aten.add.Tensor(%1, %0): f32[2]
""",
    )


def test_what_is_not_followed_gets_no_gradient() -> None:
    found, ops, values = backward(
        "%x: f32[2] grad\n%c: f32[2]\n%y = aten.mul.Tensor(%x, %c): f32[2] grad\n"
    )
    assert values["c"] not in found.gradients
    assert_tree(
        ops,
        """\
%0 = aten.mul.Tensor(%g, %c): f32[2]
""",
    )


def test_an_op_without_a_gradient_has_no_backward() -> None:
    found, _, values = backward(
        "%x: f32[2] grad\n"
        "%z = aten.exp.default(%x): f32[2] grad\n"
        "%y = aten.sin.default(%x): f32[2] grad\n"
    )
    assert [op.because.outs[0].hint for op in found.scope.ops] == ["y"]
    assert values["z"] not in found.gradients


def test_no_gradient_goes_through_what_ran_under_no_grad() -> None:
    values, ops = tree("%x: f32[2] grad\n%y = aten.view.default(%x, [2]): f32[2] grad\n")
    hidden = [op.but(origin=replace(op.origin, grad_mode=False)) for op in ops]
    assert walk(hidden, values["y"]).scope.ops == []


COMPOSITE = """\
%x: f32[2, 3] grad
%w: f32[2, 3] grad
%y = aten.linear.default(%x, %w): f32[2, 2] grad
    %t = aten.t.default(%w): f32[3, 2] by [1, 3] grad
    %y = aten.mm.default(%x, %t): f32[2, 2] grad
"""


def test_a_composite_is_opened() -> None:
    assert_tree(
        backward(COMPOSITE)[1],
        """\
%0 = aten.t.default(%g): f32[2, 2] by [1, 2]
%1 = aten.mm.default(%0, %x): f32[2, 3]
%2 = aten.t.default(%1): f32[3, 2] by [1, 3]
%3 = aten.t.default(%t): f32[2, 3]
%4 = aten.mm.default(%g, %3): f32[2, 3]
%5 = aten.t.default(%2): f32[2, 3]
""",
    )


def test_a_kept_op_has_one_backward_op_with_the_derivative_of_its_body() -> None:
    found, ops, values = backward(COMPOSITE, Level(written=False, keep=("linear",)))
    (op,) = found.scope.ops
    assert ops == [op]
    assert op.target.of.outs == (values["y"],)
    assert set(op.outs) == {found.gradients[values["x"]], found.gradients[values["w"]]}
    assert_tree(
        list(flatten(op.body, LEAVES)),
        """\
%0 = aten.t.default(%g): f32[2, 2] by [1, 2]
%1 = aten.mm.default(%0, %x): f32[2, 3]
%2 = aten.t.default(%1): f32[3, 2] by [1, 3]
%3 = aten.t.default(%t): f32[2, 3]
%4 = aten.mm.default(%g, %3): f32[2, 3]
%5 = aten.t.default(%2): f32[2, 3]
""",
    )


def written(fn: Any) -> list[Op]:
    """The flat backward ops of what `fn` returns."""
    return backward_of(recorded(fn, torch.zeros(2, 3, requires_grad=True)))


def backward_of(found: Recording) -> list[Op]:
    held = walk(found.ops, found.outputs[0].value, overwritten=found.overwritten)
    return list(flatten(held.scope.ops, LEAVES))


def test_a_write_through_a_view_is_copy_slices() -> None:
    def fn(x):
        y = x.neg()
        y[1].mul_(3)
        return y

    assert_tree(
        written(fn),
        """\
%0 = aten.select.int(%g, 0, 1): f32[3] at 3
%1 = aten.clone.default(%0, memory_format=torch.contiguous_format): f32[3]
%2 = aten.mul.Tensor(%1, 3): f32[3]
%3 = aten.select_scatter.default(%g, %2, 0, 1): f32[2, 3]
%4 = aten.neg.default(%3): f32[2, 3]
""",
    )


def test_a_hidden_write_passes_the_gradient_by() -> None:
    def fn(x):
        y = x.neg()
        with torch.no_grad():
            y.mul_(3)
        return y

    assert_tree(
        written(fn),
        """\
%0 = aten.neg.default(%g): f32[2, 3]
""",
    )


def test_a_value_that_was_written_over_is_read_as_memory_holds_it() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.data.mul_(3)
        return z

    found = recorded(fn, torch.zeros(2, 3, requires_grad=True))
    now = found.overwritten[found.ops[0].outs[0]].now
    cos, *_ = backward_of(found)
    assert (cos.target, cos.args) == (torch.ops.aten.cos.default, (now,))
    assert now is not found.ops[0].outs[0]


def test_a_write_that_is_counted_refuses_the_backward() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.mul_(3)
        return z

    with pytest.raises(Refusal, match="writes over afterwards"):
        written(fn)


def test_an_op_without_a_derivative_is_refused() -> None:
    with pytest.raises(Refusal, match="no derivative"):
        backward("%x: f32[4] grad\n%y = aten.igamma.default(%x, %x): f32[4] grad\n")

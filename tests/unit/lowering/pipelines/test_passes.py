"""One pass at a time: a graph as text goes in, a graph as text comes out."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import foretrace
from foretrace.autograd.eager_history.history_ops import HISTORY
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Graph, Recording
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.pipelines.forward import (
    assert_numbers,
    check_functions,
    cut_subgraphs,
    cut_trained_subgraphs,
    drop_dead,
    drop_unread_writes,
    flatten_forward,
    flatten_leaving_writes,
    history_as_ops,
    memory_as_ops,
    place_views,
    register_hooks,
    return_insides,
    separate_reshaped,
    unmark_leaves,
)
from foretrace.lowering.pipelines.joint import (
    check_hooks,
    check_left_gradients,
    differentiate,
    flatten_joint,
)
from foretrace.lowering.pipelines.passes import Context, Pass, changed, run_passes, start
from foretrace.lowering.pipelines.rewrites import (
    numbers_as_tensors,
    open_by_table,
    order_losses,
    recompute,
    scalars_as_ops,
)
from tests.support.trees import assert_tree, program, recorded, semantics, shown

aten = torch.ops.aten
AS_WRITTEN, LEAVES = Level(written=True), Level(written=False)


def after(found: Recording, level: Level, *passes: Pass, **asked: Any) -> tuple[Graph, Context]:
    """The graph of a record after some passes."""
    context = Context(found, semantics(), level, **asked)
    kind = "joint" if differentiate in passes else "aten"
    return run_passes(passes, start(kind, found), context), context


def with_numbers(fn: Callable[..., Any]) -> tuple[Graph, Context]:
    """The flat graph of a program that reads numbers of its data."""
    found = foretrace.capture(fn, (torch.ones(3),), dynamic_shapes=True)
    context = Context(found.recorded, found.semantics, LEAVES)
    return run_passes((flatten_forward,), start("aten", found.recorded), context), context


def text_of(text: str, *outputs: str, grad_mode: bool = True) -> Recording:
    found = program(text, outputs)[1]
    found.ops = [op.but(origin=replace(op.origin, grad_mode=grad_mode)) for op in found.ops]
    return found


def same(one: Pass, graph: Graph, context: Context) -> bool:
    """Whether a pass gives back the graph itself."""
    return one.change(graph, context) is graph


LINEAR = """\
%x: f32[4, 8]
%w: f32[3, 8] grad
%y = aten.linear.default(%x, %w, None): f32[4, 3] grad
    %t = aten.t.default(%w): f32[8, 3] by [1, 8] grad
    %y = aten.mm.default(%x, %t): f32[4, 3] grad
%z = aten.exp.default(%y): f32[4, 3] grad
"""


@pytest.mark.parametrize("flatten", [flatten_forward, flatten_leaving_writes, flatten_joint])
def test_flatten_opens_what_the_level_does_not_keep(flatten: Pass) -> None:
    graph, _ = after(text_of(LINEAR, "z"), LEAVES, flatten)
    assert_tree(
        graph.ops,
        """\
%t = aten.t.default(%w): f32[8, 3] by [1, 8] grad
%y = aten.mm.default(%x, %t): f32[4, 3] grad
%z = aten.exp.default(%y): f32[4, 3] grad
""",
    )


@pytest.mark.parametrize("flatten", [flatten_forward, flatten_leaving_writes])
def test_flatten_leaves_what_is_as_written(flatten: Pass) -> None:
    found = text_of(LINEAR, "z")
    assert after(found, AS_WRITTEN, flatten)[0].ops == found.ops


def hidden(x):
    y = x.mul(2)
    with torch.no_grad():
        y.add_(1)
    return y.sin()


GRAD = torch.zeros(2, requires_grad=True)


def test_a_write_that_autograd_does_not_see_is_left_for_the_spelling() -> None:
    found = recorded(hidden, GRAD)
    graph, context = after(found, LEAVES, flatten_leaving_writes)
    assert_tree(
        graph.ops,
        """\
%0 = aten.mul.Tensor(%x, 2): f32[2] grad
%1 = add_!(%0, [%0, 1]): f32[2] grad
    %1 = aten.add.Tensor(%0, 1): f32[2] grad
%2 = aten.sin.default(%1): f32[2] grad
""",
    )
    assert_tree(
        history_as_ops.change(graph, context).ops,
        """\
%0 = aten.mul.Tensor(%x, 2): f32[2] grad
%1 = aten.add.Tensor(%0, 1): f32[2]
%2 = aten.detach.default(%1): f32[2]
%3 = aten.clone.default(%0): f32[2] grad
%4 = aten.detach.default(%3): f32[2]
%5 = aten.copy_.default(%4, %2): f32[2]
%6 = aten.sin.default(%3): f32[2] grad
""",
    )


def test_a_write_that_nothing_reads_is_dropped() -> None:
    def fn(x):
        y = x.mul(2)
        z = y.sin()
        with torch.no_grad():
            y.add_(1)
        return z

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_leaving_writes)
    assert_tree(
        drop_unread_writes.change(graph, context).ops,
        """\
%0 = aten.mul.Tensor(%x, 2): f32[2] grad
%1 = aten.sin.default(%0): f32[2] grad
""",
    )
    read, context = after(recorded(hidden, GRAD), LEAVES, flatten_leaving_writes)
    assert not changed(read, drop_unread_writes.change(read, context))


def test_what_reads_a_write_that_is_dropped_goes_with_it() -> None:
    def fn(x):
        y = x.mul(2)
        with torch.no_grad():
            y.add_(1)
        y.exp()
        return x.sin()

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_leaving_writes)
    assert [str(op.target) for op in graph.ops][1:3] == ["add_", "aten.exp.default"]
    assert_tree(
        drop_unread_writes.change(graph, context).ops,
        """\
%0 = aten.mul.Tensor(%x, 2): f32[2] grad
%1 = aten.sin.default(%x): f32[2] grad
""",
    )


def test_what_ran_under_no_grad_is_detached() -> None:
    graph, context = after(text_of(LINEAR, "z", grad_mode=False), AS_WRITTEN, flatten_forward)
    assert_tree(
        history_as_ops.change(graph, context).ops,
        """\
%y = aten.linear.default(%x, %w, None): f32[4, 3] grad
    %t = aten.t.default(%w): f32[8, 3] by [1, 8] grad
    %y = aten.mm.default(%x, %t): f32[4, 3] grad
%y_ = aten.detach.default(%y): f32[4, 3] grad
%z = aten.exp.default(%y_): f32[4, 3] grad
%0 = aten.detach.default(%z): f32[4, 3]
%z_ = aten.requires_grad_.default(%0): f32[4, 3] grad
""",
    )


def test_what_is_read_after_its_shape_was_changed_is_a_copy() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.unsqueeze_(0)
        return z, y.exp()

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_leaving_writes, history_as_ops)
    assert_tree(
        separate_reshaped.change(graph, context).ops,
        """\
%0 = aten.neg.default(%x): f32[2] grad
%1 = aten.sin.default(%0): f32[2] grad
%2 = aten.clone.default(%0): f32[2] grad
%3 = aten.unsqueeze.default(%2, 0): f32[1, 2] grad
%4 = aten.exp.default(%3): f32[1, 2] grad
""",
    )
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_leaving_writes, history_as_ops)
    assert same(separate_reshaped, plain, context)


def test_memory_holds_at_the_end_what_a_backward_is_to_find() -> None:
    def fn(x):
        y = x.neg()
        z = y.sin()
        y.data.zero_()
        return z

    graph, context = after(
        recorded(fn, GRAD), LEAVES, flatten_leaving_writes, drop_unread_writes, history_as_ops
    )
    assert_tree(
        memory_as_ops.change(graph, context).ops,
        """\
%0 = aten.neg.default(%x): f32[2] grad
%1 = aten.sin.default(%0): f32[2] grad
%2 = aten.detach.default(%0): f32[2]
%3 = aten.zero.default(%2): f32[2]
%4 = aten.clone.default(%0): f32[2] grad
%5 = aten.detach.default(%4): f32[2]
%6 = aten.copy_.default(%5, %3): f32[2]
%7 = aten.data.default(%0): f32[2]
%8 = aten.copy_.default(%7, %4): f32[2]
""",
    )
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_leaving_writes, history_as_ops)
    assert same(memory_as_ops, plain, context)


def test_a_returned_input_that_was_written_unseen_is_used_once() -> None:
    def fn(x):
        with torch.no_grad():
            x.add_(1)
        return x, x * 2, x * 3

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_leaving_writes, history_as_ops)
    with pytest.raises(Refusal, match="uses it more than once"):
        memory_as_ops.change(graph, context)


def test_a_view_by_strides_of_a_copy_counts_from_where_the_copy_begins() -> None:
    text = """\
%x: f32[6] at 2 grad
%copy = aten.clone.default(%x): f32[6] at 2 grad
%y = aten.as_strided.default(%copy, [2], [1], 3): f32[2] at 3 grad
"""
    found = text_of(text, "y")
    found.ops[0] = found.ops[0].but(choice=Choice(HISTORY, "spelled out", "it is a copy"))
    assert_tree(
        after(found, LEAVES, place_views)[0].ops,
        """\
%copy = aten.clone.default(%x): f32[6] at 2 grad
%y = aten.as_strided.default(%copy, [2], [1], 1): f32[2] at 3 grad
""",
    )
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_leaving_writes, history_as_ops)
    assert same(place_views, plain, context)


def test_a_leaf_that_the_program_makes_is_not_marked_where_nothing_is_followed() -> None:
    def fn(x):
        return x.detach().requires_grad_().exp()

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_forward)
    assert_tree(
        unmark_leaves.change(graph, context).ops,
        """\
%0 = aten.detach.default(%x): f32[2]
%1 = aten.detach.default(%0): f32[2] grad
%2 = aten.exp.default(%1): f32[2] grad
""",
    )


DEAD = "%x: f32[2]\n%a = aten.mul.Tensor(%x, 2): f32[2]\n%b = aten.exp.default(%x): f32[2]\n"


def test_what_no_output_needs_is_dropped_unless_it_is_asked_for() -> None:
    found = text_of(DEAD, "a")
    assert_tree(
        after(found, LEAVES, drop_dead)[0].ops,
        """\
%a = aten.mul.Tensor(%x, 2): f32[2]
""",
    )
    also = [found.ops[1].outs[0]]
    assert after(found, LEAVES, drop_dead, also=also)[0].ops == found.ops


def branches(x):
    def both(y):
        return torch.nn.functional.linear(y, y)

    return torch.cond(x.sum() > 0, both, both, (x,))


@pytest.mark.parametrize("cut", [cut_subgraphs, cut_trained_subgraphs])
def test_the_programs_that_an_op_holds_are_cut_at_its_level(cut: Pass) -> None:
    graph, context = after(recorded(branches, torch.zeros(2, 2)), LEAVES, flatten_forward)
    assert_tree(
        cut.change(graph, context).ops,
        """\
%0 = aten.sum.default(%x): f32[]
%1 = aten.gt.Scalar(%0, 0): b8[]
%2 = higher_order.cond(%1, @true_graph, @false_graph, [%x]): f32[2, 2]
    @true_graph(%x) -> [%4]
        %3 = aten.t.default(%x): f32[2, 2] by [1, 2]
        %4 = aten.mm.default(%x, %3): f32[2, 2]
    @false_graph(%x) -> [%6]
        %5 = aten.t.default(%x): f32[2, 2] by [1, 2]
        %6 = aten.mm.default(%x, %5): f32[2, 2]
""",
    )


def test_a_kept_op_returns_what_is_used_of_its_insides() -> None:
    text = LINEAR + "%u = aten.exp.default(%t): f32[8, 3] by [1, 8] grad\n"
    graph, context = after(text_of(text, "z", "u"), AS_WRITTEN, flatten_forward)
    assert_tree(
        return_insides.change(graph, context).ops,
        """\
%y, %t = aten.linear.default(%x, %w, None): f32[4, 3] grad, f32[8, 3] by [1, 8] grad
    %t = aten.t.default(%w): f32[8, 3] by [1, 8] grad
    %y = aten.mm.default(%x, %t): f32[4, 3] grad
%z = aten.exp.default(%y): f32[4, 3] grad
%u = aten.exp.default(%t): f32[8, 3] by [1, 8] grad
""",
    )
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_forward)
    assert same(return_insides, plain, context)


def test_what_was_assumed_of_a_number_of_data_is_asserted_where_it_is_known() -> None:
    def fn(x):
        found = x.nonzero()
        return found * 2 if found.shape[0] > 1 else found

    graph, context = with_numbers(fn)
    made, check, read = assert_numbers.change(graph, context).ops
    assert [made, read] == graph.ops
    assert str(check.target) == "aten._assert_scalar.default"
    assert str(check.args[0]) == f"1 < {made.outs[0].type.shape[0]}"
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_forward)
    assert same(assert_numbers, plain, context)


def test_hooks_are_registered_where_the_run_did() -> None:
    def fn(x):
        y = x.mul(2)
        z = y.sin()
        y.register_hook(lambda gradient: gradient * 2)
        return z

    graph, context = after(recorded(fn, GRAD), LEAVES, flatten_forward)
    ops = register_hooks.change(graph, context).ops
    assert [str(op.target) for op in ops] == [
        "aten.mul.Tensor", "aten.sin.default", "register_hook",
    ]  # fmt: skip
    plain, context = after(text_of(LINEAR, "z"), LEAVES, flatten_forward)
    assert same(register_hooks, plain, context)
    assert same(check_functions, plain, context)


def test_the_derivative_follows_the_tree_and_gradients_follow_the_outputs() -> None:
    graph, context = after(text_of(LINEAR, "z"), LEAVES, differentiate)
    assert [role.kind for role in graph.signature.inputs] == ["input", "input", "tangent"]
    assert [role.kind for role in graph.signature.outputs] == ["output", "gradient"]
    assert_tree(
        flatten_joint.change(graph, context).ops,
        """\
%t = aten.t.default(%w): f32[8, 3] by [1, 8] grad
%y = aten.mm.default(%x, %t): f32[4, 3] grad
%z = aten.exp.default(%y): f32[4, 3] grad
%1 = aten.mul.Tensor(%0, %z): f32[4, 3]
%2 = aten.t.default(%1): f32[3, 4] by [1, 3]
%3 = aten.mm.default(%2, %x): f32[3, 8]
%4 = aten.t.default(%3): f32[8, 3] by [1, 8]
%5 = aten.t.default(%4): f32[3, 8]
""",
    )


def test_a_loss_is_the_root_of_its_gradient() -> None:
    text = "%x: f32[2] grad\n%y = aten.sum.default(%x): f32[] grad\n"
    graph, context = after(text_of(text, "y"), LEAVES, differentiate, flatten_joint, loss=0)
    assert_tree(
        graph.ops,
        """\
%y = aten.sum.default(%x): f32[] grad
%0 = aten.ones_like.default(%y, pin_memory=False, memory_format=torch.preserve_format): f32[]
%1 = aten.expand.default(%0, [2]): f32[2] by [0]
""",
    )
    assert_tree(
        order_losses.change(graph, context).ops,
        """\
%y = aten.sum.default(%x): f32[] grad
%0 = aten.ones_like.default(%y, pin_memory=False, memory_format=torch.preserve_format): f32[]
%1 = aten.eq.Tensor(%y, %y): b8[]
%2 = aten.where.self(%1, %0, %0): f32[]
%3 = aten.expand.default(%2, [2]): f32[2] by [0]
""",
    )


def test_a_hook_on_an_input_is_refused() -> None:
    found = text_of(LINEAR, "z")
    graph, context = after(found, LEAVES)
    assert same(check_hooks, graph, context)
    assert same(check_left_gradients, graph, context)
    found.inputs[1].hooked = True
    with pytest.raises(Refusal, match="hook"):
        check_hooks.change(graph, context)


def test_a_table_opens_the_ops_that_it_has() -> None:
    table: dict[Any, Callable[..., Any]] = {aten.mul.Tensor: lambda x, y: x + x}
    graph, context = after(text_of(DEAD, "a"), LEAVES, flatten_forward, table=table)
    assert_tree(
        open_by_table.change(graph, context).ops,
        """\
%a = aten.add.Tensor(%x, %x): f32[2]
""",
    )
    assert same(open_by_table, graph, replace(context, table=None))


def test_a_function_of_pythons_goes_in_a_file_by_the_name_that_its_reader_takes() -> None:
    def fn(x):
        return x * math.sqrt(x.sum().item())

    graph, context = with_numbers(fn)
    assert [op.target for op in graph.ops][2] is math.sqrt
    made = scalars_as_ops.change(graph, context).ops
    assert made[2].target is torch.sym_sqrt
    assert made[2].result == graph.ops[2].result
    assert [*made[:2], made[3]] == [*graph.ops[:2], graph.ops[3]]


def test_a_function_that_no_file_has_is_refused() -> None:
    def fn(x):
        return x * math.exp(x.sum().item())

    graph, context = with_numbers(fn)
    with pytest.raises(Refusal, match="has no exp of a number that data decides"):
        scalars_as_ops.change(graph, context)


def test_numbers_of_data_are_tensors_where_they_are_asked_for() -> None:
    graph, context = with_numbers(lambda x: x * (1 / x.sum().item()))
    assert same(numbers_as_tensors, graph, context)
    made = numbers_as_tensors.change(graph, replace(context, numbers="tensors")).ops
    assert [op.target for op in made] == [
        aten.sum.default, aten.view.default, aten._to_copy.default,
        aten.scalar_tensor.default, aten.ne.Scalar, aten._assert_async.msg, aten.div.Tensor,
        aten._to_copy.default, aten.mul.Tensor,
    ]  # fmt: skip
    assert {op.piece_of for op in made[3:7]} == {graph.ops[2]}


def step(x):
    loss = x.sin().exp().sum()
    (gradient,) = torch.autograd.grad(loss, x)
    return x.detach() - gradient


def test_what_the_policy_does_not_keep_is_made_again_before_the_backward() -> None:
    found = recorded(step, GRAD)
    graph, context = after(
        found, LEAVES, flatten_forward, unmark_leaves, drop_dead, policy="recompute_all"
    )
    assert_tree(
        graph.ops,
        """\
%0 = aten.sin.default(%x): f32[2] grad
%1 = aten.exp.default(%0): f32[2] grad
%2 = aten.sum.default(%1): f32[] grad
%3 = aten.ones_like.default(%2, pin_memory=False, memory_format=torch.preserve_format): f32[]
%4 = aten.expand.default(%3, [2]): f32[2] by [0]
%5 = aten.mul.Tensor(%4, %1): f32[2]
%6 = aten.cos.default(%x): f32[2]
%7 = aten.mul.Tensor(%5, %6): f32[2]
%8 = aten.detach.default(%x): f32[2]
%9 = aten.sub.Tensor(%8, %7): f32[2]
""",
    )
    assert_tree(
        recompute.change(graph, context).ops,
        """\
%0 = aten.sin.default(%x): f32[2] grad
%1 = aten.exp.default(%0): f32[2] grad
%2 = aten.sum.default(%1): f32[] grad
%3 = aten.ones_like.default(%2, pin_memory=False, memory_format=torch.preserve_format): f32[]
%4 = aten.sin.default(%x): f32[2] grad
%5 = aten.exp.default(%4): f32[2] grad
%6 = aten.sum.default(%5): f32[] grad
%7 = aten.ones_like.default(%6, pin_memory=False, memory_format=torch.preserve_format): f32[]
%8 = aten.expand.default(%7, [2]): f32[2] by [0]
%9 = aten.mul.Tensor(%8, %5): f32[2]
%10 = aten.cos.default(%x): f32[2]
%11 = aten.mul.Tensor(%9, %10): f32[2]
%12 = aten.detach.default(%x): f32[2]
%13 = aten.sub.Tensor(%12, %11): f32[2]
""",
    )
    assert same(recompute, graph, replace(context, policy="save_all"))


def test_no_pass_writes_to_the_tree() -> None:
    found = recorded(hidden, GRAD)
    before, ops = shown(found.ops), list[Op](found.ops)
    after(
        found, LEAVES, flatten_leaving_writes, drop_unread_writes, history_as_ops,
        separate_reshaped, memory_as_ops, place_views, drop_dead, return_insides,
    )  # fmt: skip
    assert (shown(found.ops), found.ops) == (before, ops)

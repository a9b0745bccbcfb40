"""`emit_history`: what the program hid from autograd is detached, what it wrote is a copy."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretrace.autograd.eager_history.emit_history import (
    EagerHistory,
    emit_history,
)
from foretrace.autograd.eager_history.history_ops import left_in_memory, unmark
from foretrace.autograd.eager_history.trained_writes import is_hidden_write
from foretrace.ir.program.op import Op
from foretrace.tracer.functionalization.builder import REQUIRES_GRAD
from tests.support.trees import assert_tree, recorded, semantics, tree

aten = torch.ops.aten
GRAD = torch.zeros(2, 3, requires_grad=True)


class Told:
    """What operators mean, but for what autograd does: that a test says."""

    def __init__(
        self, below: Any = (), refused: Any = lambda func: False, own_formula: bool = False
    ) -> None:
        self.derivatives, self.below_autograd = self, below
        self._refused, self._own_formula = refused, own_formula

    def infer(self, *call: Any) -> Any:
        return semantics().infer(*call)

    def followed(self, func: Any, *_: Any) -> tuple[bool, ...]:
        if self._refused(func):
            raise NotImplementedError
        return ()

    def node(self, call: Any) -> str:
        return str(call.func) if self._own_formula else "the one of both"


def history(**told: Any) -> EagerHistory:
    return EagerHistory(Told(**told))  # type: ignore[arg-type]


PLAIN = history()


def without_grad(op: Op) -> Op:
    return op.but(origin=replace(op.origin, grad_mode=False))


def under_no_grad(text: str) -> list[Op]:
    return [without_grad(op) for op in tree(text)[1]]


FOLLOWED = "%x: f32[2] grad\n%y = aten.neg.default(%x): f32[2]\n"


def test_what_ran_under_no_grad_is_detached() -> None:
    assert_tree(
        list(emit_history(under_no_grad(FOLLOWED), PLAIN)),
        """\
%y = aten.neg.default(%x): f32[2]
%y_ = aten.detach.default(%y): f32[2]
""",
    )


def test_what_ran_with_grad_mode_stays() -> None:
    ops = tree(FOLLOWED)[1]
    assert list(emit_history(ops, PLAIN)) == ops


def test_the_grad_mode_around_the_run_is_no_part_of_the_program() -> None:
    ops = under_no_grad(FOLLOWED)
    assert list(emit_history(ops, replace(PLAIN, around=False))) == ops


@pytest.mark.parametrize("text", [
    "%x: f32[2]\n%y = aten.neg.default(%x): f32[2]\n",
    "%x: f32[2] grad\n%y = aten.isnan.default(%x): b8[2]\n",
])  # fmt: skip
def test_what_autograd_cannot_follow_is_not_detached(text: str) -> None:
    ops = under_no_grad(text)
    assert list(emit_history(ops, PLAIN)) == ops


def test_what_runs_below_autograd_is_detached() -> None:
    ops = tree(FOLLOWED)[1]
    assert len(list(emit_history(ops, history(below={aten.neg.default})))) == 2


def test_what_autograd_refuses_is_called_with_detached_operands() -> None:
    refusing = history(refused=lambda func: True)
    assert_tree(
        list(emit_history(under_no_grad(FOLLOWED), refusing)),
        """\
%0 = aten.detach.default(%x): f32[2]
%y = aten.neg.default(%0): f32[2]
""",
    )


def test_a_view_under_no_grad_still_says_that_it_requires_grad() -> None:
    text = "%x: f32[2] grad\n%y = aten.view.default(%x, [2]): f32[2] grad\n"
    ops = under_no_grad(text)
    seen = replace(PLAIN, visible={ops[0].outs[0]})
    assert_tree(
        list(emit_history(ops, seen)),
        """\
%y = aten.view.default(%x, [2]): f32[2] grad
%0 = aten.detach.default(%y): f32[2]
%y_ = aten.requires_grad_.default(%0): f32[2] grad
""",
    )


def hidden_write() -> list[Op]:
    def fn(x):
        y = x.neg()
        with torch.no_grad():
            y.mul_(2)
        return y

    return recorded(fn, GRAD).ops


def test_a_hidden_write_is_a_copy_with_the_old_history() -> None:
    ops = hidden_write()
    assert [is_hidden_write(op) for op in ops] == [False, True]
    assert_tree(
        list(emit_history(ops, PLAIN))[1:],
        """\
%1 = aten.mul.Tensor(%0, 2): f32[2, 3]
%2 = aten.detach.default(%1): f32[2, 3]
%3 = aten.clone.default(%0): f32[2, 3] grad
%4 = aten.detach.default(%3): f32[2, 3]
%5 = aten.copy_.default(%4, %2): f32[2, 3]
""",
    )


def test_a_write_of_what_autograd_saved_a_copy_of_works_on_a_copy() -> None:
    def fn(x):
        y = x.neg()
        return y.sigmoid_()

    ops = recorded(fn, GRAD).ops
    copied = replace(PLAIN, copied={ops[1]: ops[1].args[0]})
    assert_tree(
        list(emit_history(ops, copied))[1:],
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.sigmoid.default(%1): f32[2, 3] grad
""",
    )


def trained(fn: Any, by: EagerHistory = PLAIN, *args: Any) -> list[Op]:
    """The body of the last op of a program, as a cut that trains has it."""
    return list(by.trained_body(recorded(fn, GRAD, *args).ops[-1]))


def test_a_write_is_its_functional_form_where_that_has_the_same_derivative() -> None:
    assert_tree(
        trained(lambda x: x.neg().mul_(2)),
        """\
%1 = aten.mul.Tensor(%0, 2): f32[2, 3] grad
""",
    )


def test_a_write_with_a_derivative_of_its_own_is_called_on_a_copy() -> None:
    assert_tree(
        trained(lambda x: x.neg().mul_(2), history(own_formula=True)),
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.mul_.Tensor(%1, 2): f32[2, 3] grad
""",
    )


def test_what_is_drawn_over_a_followed_tensor_is_drawn_in_place() -> None:
    assert_tree(
        trained(lambda x: x.neg().uniform_()),
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.uniform_.default(%1): f32[2, 3] grad
""",
    )


def test_a_copy_over_a_followed_tensor_keeps_nothing_of_it_but_the_history() -> None:
    assert_tree(
        trained(lambda x, c: x.neg().copy_(c), PLAIN, torch.zeros(2, 3)),
        """\
%0 = aten.clone.default(%c): f32[2, 3]
%2 = aten.clone.default(%1): f32[2, 3] grad
%3 = aten.copy_.default(%2, %0): f32[2, 3] grad
""",
    )


def test_a_scatter_without_a_derivative_is_a_copy_into_a_view() -> None:
    def fn(x):
        y = x.neg()
        with torch.no_grad():
            y[1].mul_(2)
        return y

    write = next(op for op in recorded(fn, GRAD).ops if op.writes)
    refusing = history(refused=lambda func: "scatter" in str(func))
    assert_tree(
        list(refusing.trained_body(write))[1:],
        """\
%1 = aten.clone.default(%0): f32[2, 3] grad
%2 = aten.select.int(%1, 0, 1): f32[3] at 3 grad
%4 = aten.copy_.default(%2, %3): f32[3] at 3 grad
""",
    )


def test_what_the_backward_is_to_find_is_copied_at_the_end() -> None:
    values, ops = tree("%x: f32[2] grad\n%now: f32[2]\n%y = aten.exp.default(%x): f32[2] grad\n")
    assert_tree(
        list(left_in_memory(values["y"], values["now"], ops[0])),
        """\
%0 = aten.data.default(%y): f32[2]
%1 = aten.copy_.default(%0, %now): f32[2]
""",
    )


def test_a_write_that_is_counted_writes_itself_for_the_backward_to_meet() -> None:
    values, ops = tree("%x: f32[2] grad\n%y = aten.exp.default(%x): f32[2] grad\n")
    assert_tree(
        list(left_in_memory(values["y"], None, ops[0])),
        """\
%0 = aten.detach.default(%y): f32[2]
%1 = aten.copy_.default(%0, %0): f32[2]
""",
    )


def test_a_leaf_that_the_program_makes_is_the_tensor_unseen_where_gradients_are_given() -> None:
    (leaf,) = tree("%x: f32[2]\n%y = aten.requires_grad_.default(%x): f32[2] grad\n")[1]
    assert leaf.target is REQUIRES_GRAD
    assert unmark(leaf).target is aten.detach.default

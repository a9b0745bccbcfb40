"""`uses_apart`: each use of what is returned and was written without autograd has its own copy."""

from typing import Any

import torch

from foretrace.autograd.eager_history.history_ops import make_call
from foretrace.autograd.eager_history.leaf_use_copies import returned_inputs, uses_apart
from foretrace.autograd.eager_history.spell_history import HIDDEN
from tests.support.trees import assert_tree, recorded, tree

USES = """\
%x: f32[2] grad
%new: f32[2] grad
%a = aten.sin.default(%new): f32[2] grad
%b = aten.mul.Tensor(%new, %new): f32[2] grad
%c = aten.isnan.default(%new): b8[2]
"""


def apart(given: Any = ("x",), opened: Any = lambda op: ()) -> Any:
    values, ops = tree(USES)
    copy = make_call(ops[0], torch.ops.aten.clone.default, (values["x"],), values["new"], HIDDEN)
    return uses_apart([copy, *ops], {values[name] for name in given}, opened), values


def test_each_use_but_the_first_is_of_another_copy() -> None:
    (ops, copies), values = apart()
    assert len(copies) == 2
    assert set(copies.values()) == {values["new"]}
    assert_tree(
        ops,
        """\
%new = aten.clone.default(%x): f32[2] grad
%a = aten.sin.default(%new): f32[2] grad
%0 = aten.clone.default(%x): f32[2] grad
%1 = aten.detach.default(%new): f32[2]
%2 = aten.detach.default(%0): f32[2]
%3 = aten.copy_.default(%2, %1): f32[2]
%4 = aten.clone.default(%x): f32[2] grad
%5 = aten.detach.default(%new): f32[2]
%6 = aten.detach.default(%4): f32[2]
%7 = aten.copy_.default(%6, %5): f32[2]
%b = aten.mul.Tensor(%4, %0): f32[2] grad
%c = aten.isnan.default(%new): b8[2]
""",
    )


def test_what_is_not_returned_stays() -> None:
    (ops, copies), _ = apart(given=())
    assert copies == {}
    assert len(ops) == 4


def test_what_uses_it_several_times_below_is_opened() -> None:
    values, (outer, use) = tree(
        "%x: f32[2] grad\n%new: f32[2] grad\n"
        "%y = aten.square.default(%new): f32[2] grad\n"
        "    %m = aten.mul.Tensor(%new, %new): f32[2] grad\n"
        "    %y = aten.add.Tensor(%m, %new): f32[2] grad\n"
        "%z = aten.sin.default(%y): f32[2] grad\n"
    )
    copy = make_call(outer, torch.ops.aten.clone.default, (values["x"],), values["new"], HIDDEN)
    ops, _ = uses_apart([copy, outer, use], {values["x"]}, lambda op: op.body or ())
    assert outer not in ops
    assert {"aten.mul.Tensor", "aten.add.Tensor"} <= {str(op.target) for op in ops}


def test_returned_are_the_followed_inputs_that_are_outputs() -> None:
    def fn(x, y, c):
        return x, y.neg(), c

    grad = torch.zeros(2, requires_grad=True)
    found = recorded(fn, grad, grad.clone().detach().requires_grad_(), torch.zeros(2))
    assert returned_inputs(found) == {found.inputs[0].value}

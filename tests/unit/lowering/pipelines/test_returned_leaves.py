"""`check_used_once`: what is returned and was written without autograd has one use at most."""

from typing import Any

import pytest
import torch

import foretrace
from foretrace.autograd.eager_history.emit_history import HIDDEN
from foretrace.autograd.eager_history.history_ops import make_call
from foretrace.lowering.pipelines.returned_leaves import check_used_once, returned_inputs
from tests.support.trees import recorded, tree

ONCE = """\
%x: f32[2] grad
%new: f32[2] grad
%a = aten.sin.default(%new): f32[2] grad
%c = aten.isnan.default(%new): b8[2]
"""
AGAIN = "%b = aten.cos.default(%new): f32[2] grad\n"
BOTH_SIDES = "%b = aten.mul.Tensor(%x, %x): f32[2] grad\n"
BELOW = (
    "%x: f32[2] grad\n%new: f32[2] grad\n"
    "%y = aten.square.default(%new): f32[2] grad\n"
    "    %m = aten.mul.Tensor(%new, %new): f32[2] grad\n"
    "    %y = aten.add.Tensor(%m, %new): f32[2] grad\n"
)


def check(text: str, given: Any = ("x",)) -> None:
    values, ops = tree(text)
    copy = make_call(ops[0], torch.ops.aten.clone.default, (values["x"],), values["new"], HIDDEN)
    check_used_once([copy, *ops], {values[name] for name in given})


def test_one_use_is_taken() -> None:
    check(ONCE)


def test_what_was_not_written_is_used_as_often_as_you_like() -> None:
    check(ONCE + BOTH_SIDES)


def test_what_is_not_returned_is_used_as_often_as_you_like() -> None:
    check(ONCE + AGAIN, given=())


@pytest.mark.parametrize("text", [ONCE + AGAIN, BELOW], ids=["two ops", "below one"])
def test_more_uses_are_refused(text: str) -> None:
    with pytest.raises(foretrace.Refusal, match="uses it more than once"):
        check(text)


def test_returned_are_the_followed_inputs_that_are_outputs() -> None:
    def fn(x, y, c):
        return x, y.neg(), c

    grad = torch.zeros(2, requires_grad=True)
    found = recorded(fn, grad, grad.clone().detach().requires_grad_(), torch.zeros(2))
    assert returned_inputs(found) == {found.inputs[0].value}

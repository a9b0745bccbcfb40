"""`learn`: what a call comes to, for operands of certain types."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand, Share
from foretrace.tracer.functionalization.autograd_leaves import require_grad
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.recorder.composite_bodies import RecordEachCall
from foretrace.tracer.recorder.data_dependent_ops import DataSizedOp, answer, read_number
from foretrace.tracer.recorder.dispatch import learn
from foretrace.tracer.recorder.op_handlers import run_unrecorded
from tests.support.trees import assert_tree, recorded, recorder, tree

aten = torch.ops.aten
VALUES = """\
%x: f32[2, 3]
%g: f32[2, 3] grad
%w: f32[4, 3]
%n: f32[1]
%m: b8[2, 3]
%s: f32[3, 3]
"""


def outcome(func: Any, *args: Any, grad_mode: bool = True, **kwargs: Any) -> Outcome:
    """The outcome of a call whose arguments name values."""
    values, _ = tree(VALUES)
    given = [values.get(arg, arg) if isinstance(arg, str) else arg for arg in args]
    named = {name: values[value] for name, value in kwargs.items()}
    return learn(recorder(), func, given, named, grad_mode)


def test_a_leaf_has_a_type_for_each_result() -> None:
    found = outcome(aten.max.dim, "x", 1)
    assert (found.definition, found.inline, found.views) == (None, None, ())
    assert [repr(each) for each in found.result] == ["f32[2]", "i64[2]"]


@pytest.mark.parametrize(
    ("func", "args", "mode", "followed"),
    [
        (aten.sin.default, ("g",), True, True),
        (aten.sin.default, ("g",), False, False),
        (aten.sin.default, ("x",), True, False),
        (aten.isnan.default, ("g",), True, False),
        (aten.view.default, ("g", [6]), False, True),
        (aten.detach.default, ("g",), True, False),
    ],
)
def test_a_leaf_s_result_is_followed_as_autograd_has_it(
    func: Any, args: Any, mode: bool, followed: bool
) -> None:
    assert outcome(func, *args, grad_mode=mode).result.requires_grad == followed


@pytest.mark.parametrize(
    ("func", "args", "views"),
    [
        (aten.select.int, ("x", 0, 1), ((0, 0, Share.VIEW),)),
        (aten.detach.default, ("x",), ((0, 0, Share.VERSION),)),
        (aten.split.Tensor, ("x", 1), ((0, 0, Share.VIEW), (1, 0, Share.VIEW))),
        (aten.neg.default, ("x",), ()),
    ],
)
def test_a_leaf_s_views(func: Any, args: Any, views: Any) -> None:
    assert outcome(func, *args).views == views


def test_a_composite_has_a_body_over_parameters_of_its_own() -> None:
    found = outcome(aten.linear.default, "x", "w")
    assert found.lasting
    assert repr(found.result) == "f32[2, 4]"
    assert_tree(
        list(found.definition.ops),
        """\
%0 = aten.t.default(%w): f32[3, 4] by [1, 3]
%1 = aten.mm.default(%x, %0): f32[2, 4]
""",
    )


def test_a_composite_that_gives_an_operand_back_says_which() -> None:
    found = outcome(aten.dropout.default, "x", 0.5, False)
    assert found.result == ReturnedOperand(0)
    assert found.definition.ops == ()


def test_a_composite_s_view_of_an_operand_is_a_view() -> None:
    assert outcome(aten.narrow.default, "x", 1, 0, 2).views == ((0, 0, Share.VIEW),)


@pytest.mark.parametrize(
    ("func", "args", "kind"),
    [
        (aten.item.default, ("n",), read_number),
        (aten.is_nonzero.default, ("n",), answer),
        (aten.equal.default, ("x", "x"), answer),
        (aten.nonzero.default, ("m",), DataSizedOp),
    ],
)
def test_what_depends_on_data_is_asked_at_each_call(func: Any, args: Any, kind: Any) -> None:
    found = outcome(func, *args)
    assert found.result is None
    assert kind in (found.inline, type(found.inline))


def test_the_size_of_a_result_that_depends_on_data_is_not_kept() -> None:
    assert not outcome(aten.nonzero.default, "m").lasting


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "procedure"),
    [
        (aten.add_.Tensor, ("x", 1), {}, functionalize),
        (aten.neg.out, ("x",), {"out": "x"}, functionalize),
        (aten.matmul.out, ("x", "s"), {"out": "x"}, functionalize),  # a composite, too
        (aten.requires_grad_.default, ("x",), {}, require_grad),
        (torch.ops.profiler._record_function_enter_new.default, ("name",), {}, run_unrecorded),
    ],
)
def test_what_writes_or_is_about_the_run_has_a_procedure_of_its_own(
    func: Any, args: Any, kwargs: Any, procedure: Any
) -> None:
    assert outcome(func, *args, **kwargs).inline is procedure


def test_a_composite_that_writes_is_recorded_anew_at_each_call() -> None:
    found = outcome(aten.dropout_.default, "x", 0.5, True)
    assert isinstance(found.inline, RecordEachCall)


def test_a_factory_says_so() -> None:
    assert outcome(aten.zeros.default, [2]).factory
    assert not outcome(aten.neg.default, "x").factory


def test_calls_of_equal_types_share_one_outcome() -> None:
    one, _, other = recorded(
        lambda x, w: (torch.dropout(x, 0.5, True), x.neg(), torch.dropout(w, 0.5, True)),
        torch.zeros(2, 3), torch.zeros(2, 3),
    ).ops  # fmt: skip
    assert one.definition is not None
    assert one.definition is other.definition


@pytest.mark.parametrize(
    "other", [torch.zeros(3, 2), torch.zeros(2, 3).double(), torch.zeros(2, 3, requires_grad=True)]
)
def test_calls_of_other_types_do_not(other: torch.Tensor) -> None:
    one, two = recorded(
        lambda x, w: (torch.dropout(x, 0.5, True), torch.dropout(w, 0.5, True)),
        torch.zeros(2, 3), other,
    ).ops  # fmt: skip
    assert one.definition is not two.definition


def test_what_has_no_kernel_for_types_is_refused() -> None:
    library = torch.library.Library("unit_dispatch", "FRAGMENT")
    library.define("bare(Tensor x) -> Tensor")
    with pytest.raises(Refusal):
        outcome(torch.ops.unit_dispatch.bare.default, "x")
